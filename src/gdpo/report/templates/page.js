"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  /** Make an element with text. Text that a model wrote is never parsed as HTML. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** Make a heading from a name. The name can wrap between its words. */
  function named(text) {
    const words = text.split(/([^_.:/-]*[_.:/-]+)/).filter(Boolean);
    return make("bdi", {}, ...words.flatMap((word) => [word, document.createElement("wbr")]));
  }

  function shape(tag, attributes) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // Downloads: what the page shows. A spreadsheet takes text with these beginnings for a formula.
  const FORMULA = /^[=+\-@\t\n＝＋－＠]/;

  function cell(value) {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    return `"${FORMULA.test(value) ? "'" : ""}${value.replaceAll('"', '""')}"`;
  }

  function save(file, type, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href));
  }

  function curves() {
    const points = data.charts.flatMap(({ title, label, unit, x, lines }) =>
      lines.flatMap((line) => x.map((at, i) => [title, label, line.label, unit, at, ...line.numbers.map((row) => row[i])])));
    const rows = [["chart", "quantity", "line", "axis", "at", "value", "low", "high"], ...points.filter((row) => row[5] !== null)];
    return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
  }

  /** Everything on the page: its answer, its tables as they are shown, its curves and its rollouts. */
  function whole() {
    const said = (element) => element.textContent.trim().replace(/\s+/g, " ");
    const shown = [...document.querySelectorAll("main section:not(.viewer)")].map((section) => [
      section.getAttribute("aria-labelledby"),
      [...section.querySelectorAll("table")].map((table) =>
        ({ caption: table.caption && said(table.caption), rows: [...table.rows].map((row) => [...row.cells].map(said)) })),
    ]);
    const charts = data.charts.map(({ title, label, unit, x, lines }) =>
      ({ title, label, unit, x, lines: lines.map(({ label, numbers: [value, low, high] }) => ({ label, value, low, high })) }));
    const [question, answer] = ["h1", ".answer"].map((name) => said(document.querySelector(name)));
    return { question, answer, tables: Object.fromEntries(shown), charts, rollouts: data.rollouts };
  }

  const downloads = document.getElementById("save");
  const [csv, json] = downloads.querySelectorAll("button");
  csv.addEventListener("click", () => save("curves.csv", "text/csv", curves()));
  json.addEventListener("click", () => save("data.json", "application/json", JSON.stringify(whole())));
  downloads.hidden = false;

  // Charts: a cursor shows the values of every line at a step. The name of a line hides it.
  const hidden = new Set();
  const redraw = [];

  function toggle(name) {
    if (!hidden.delete(name)) hidden.add(name);
    for (const each of redraw) each();
  }

  for (const box of document.querySelectorAll(".chart")) {
    const chart = data.charts[box.dataset.chart];
    const cursor = box.querySelector(".cursor");
    const svg = box.querySelector("svg");
    const outputs = box.nextElementSibling.querySelectorAll("output");
    const buttons = [...box.nextElementSibling.querySelectorAll("li")].map((entry) => {
      const button = make("button", { type: "button" }, ...[...entry.childNodes].slice(0, -2));
      entry.prepend(button, " ");
      return button;
    });
    const at = box.nextElementSibling.querySelector(".at");
    const last = chart.x.length - 1;
    let place = last;

    function write(where) {
      chart.lines.forEach((line, i) => (outputs[i].textContent = hidden.has(line.label) ? "" : line.text[place]));
      at.textContent = where;
    }

    function show(next) {
      place = Math.max(0, Math.min(last, next));
      const x = chart.px[place];
      cursor.replaceChildren(shape("path", { d: `M${x} 10V${svg.viewBox.baseVal.height - 36}` }));
      const shown = chart.lines.filter((line) => !hidden.has(line.label));
      for (const line of shown) {
        if (line.py[place] === null) continue;
        cursor.append(shape("circle", { class: `a${line.colour}`, cx: x, cy: line.py[place], r: 4 }));
      }
      write(`${chart.unit} ${chart.x[place]}`);
      const words = shown.map((line) => `${line.label} ${line.text[place]}`);
      box.setAttribute("aria-valuenow", chart.x[place]);
      box.setAttribute("aria-valuetext", `${chart.unit} ${chart.x[place]}: ${words.join("; ")}`);
    }

    function hide() {
      if (document.activeElement === box) return;
      cursor.replaceChildren();
      place = last;
      write(chart.rest);
    }

    box.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const x = ((event.clientX - frame.left) / frame.width) * svg.viewBox.baseVal.width;
      let nearest = 0;
      chart.px.forEach((px, i) => {
        if (Math.abs(px - x) < Math.abs(chart.px[nearest] - x)) nearest = i;
      });
      show(nearest);
    });
    box.addEventListener("pointerleave", hide);
    box.addEventListener("focus", () => show(place));
    box.addEventListener("blur", () => setTimeout(hide));
    box.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(last / 10));
      const moves = {
        ArrowLeft: place - 1, ArrowDown: place - 1, ArrowRight: place + 1, ArrowUp: place + 1,
        PageDown: place - far, PageUp: place + far, Home: 0, End: last,
      };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
    buttons.forEach((button, i) => button.addEventListener("click", () => toggle(chart.lines[i].label)));
    redraw.push(() => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!hidden.has(chart.lines[i].label))));
      for (const line of svg.querySelectorAll("[data-line]")) line.style.display = hidden.has(line.dataset.line) ? "none" : "";
      hide();
    });
    redraw.at(-1)();
  }

  // Rollouts: a table to filter and sort. Opening a row shows details below the row.
  const viewer = data.rollouts;
  const linked = () => location.hash.startsWith("#rollout=");
  function notHere() {
    document.getElementById("count").textContent = "The linked rollout is not on this page.";
    document.getElementById("rollouts").scrollIntoView();
  }
  if (!viewer || !viewer.groups.length) {
    if (linked()) notHere();
    return;
  }
  const PAGE = 40;
  const rows = viewer.groups.flatMap((group) => group.samples.map((sample) => ({ group, sample })));
  const texts = (list) => list.map((m) => `${m[1]} ${m[3]}`).join("\n");
  for (const row of rows) {
    row.text = `${texts(viewer.prompts[row.group.prompt])}\n${texts(row.sample.completion)}`.toLowerCase();
    row.run = viewer.runs[row.group.run];
    const names = [row.run.label, row.run.seed ?? "", row.group.step, row.group.id, row.sample.id];
    row.link = `#rollout=${names.map(encodeURIComponent).join("/")}`;
  }

  // Runs of other frameworks have no estimator and no seed.
  const seeded = viewer.runs.some((run) => run.seed !== null);

  function shown(value, sign) {
    if (value === null || value === undefined) return "–";
    const text = String(Math.abs(value) < 1000 ? Number(value.toFixed(3)) : value);
    return (sign && value > 0 ? "+" : "") + text;
  }

  const columns = [
    { title: "run", value: (r) => r.group.run, text: (r) => (seeded ? `${r.run.label}, seed ${r.run.seed}` : r.run.label) },
    { title: "step", value: (r) => r.group.step },
    ...viewer.rewards.map((name) => ({ title: name, value: (r) => r.sample.rewards[name] })),
    ...viewer.estimators.map((name, i) => ({
      title: `advantage: ${name}`, value: (r) => r.sample.advantages[i], sign: true, advantage: true,
    })),
    { title: "disagreement", value: (r) => r.sample.disagreement },
    { title: "completion", value: (r) => texts(r.sample.completion).slice(0, 120) },
  ];
  let order = { column: columns.length - 2, down: true };
  let limit = PAGE;

  const form = document.getElementById("filter");
  const fields = {};
  function field(name, label, input) {
    fields[name] = input;
    form.append(make("label", {}, label, input));
  }
  const choice = (values, all) =>
    make("select", {}, make("option", { value: "" }, all), ...values.map((v) => make("option", { value: v }, String(v))));
  const distinct = (values) => [...new Set(values)];
  const what = seeded ? "estimator" : "run";
  field("label", what, choice(distinct(viewer.runs.map((run) => run.label)), `all ${what}s`));
  if (seeded) field("seed", "seed", choice(distinct(viewer.runs.map((run) => run.seed)), "all seeds"));
  field("from", "from step", make("input", { type: "number", min: 0 }));
  field("to", "to step", make("input", { type: "number", min: 0 }));
  field("reward", "reward", choice(viewer.rewards, "any reward"));
  field("low", "at least", make("input", { type: "number", step: "any" }));
  field("high", "at most", make("input", { type: "number", step: "any" }));
  field("text", "text", make("input", { type: "search" }));
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { limit = PAGE; draw(); });

  function within(value, low, high) {
    if (low.value === "" && high.value === "") return true;
    if (value === null || value === undefined) return false;
    return (low.value === "" || value >= +low.value) && (high.value === "" || value <= +high.value);
  }

  function matches(row) {
    const reward = fields.reward.value;
    return (!fields.label.value || row.run.label === fields.label.value)
      && (!fields.seed?.value || String(row.run.seed) === fields.seed.value)
      && within(row.group.step, fields.from, fields.to)
      && (reward ? [reward] : viewer.rewards).some((n) => within(row.sample.rewards[n], fields.low, fields.high))
      && row.text.includes(fields.text.value.toLowerCase());
  }

  function compare(a, b) {
    const [x, y] = [a, b].map(columns[order.column].value);
    if (x === y) return 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * (order.down ? -1 : 1);
  }

  const table = document.getElementById("list");
  const more = document.getElementById("more");
  const head = make("tr");
  const body = make("tbody");
  table.append(make("caption", {}, "Select a heading to sort, or a run to read the rollout. Red: the estimators give this rollout advantages with opposite signs."), make("thead", {}, head), body);
  columns.forEach((column, i) => {
    const button = make("button", { type: "button" }, named(column.title), make("span", { "aria-hidden": "true" }));
    button.addEventListener("click", () => {
      order = { column: i, down: order.column === i ? !order.down : true };
      draw();
    });
    head.append(make("th", { scope: "col" }, button));
  });
  more.addEventListener("click", () => {
    const before = body.querySelectorAll("tr.row").length;
    limit += PAGE;
    draw();
    body.querySelectorAll("tr.row button")[before]?.focus();
  });

  const matching = () => rows.filter(matches).sort(compare);

  function draw() {
    const found = matching();
    [...head.children].forEach((cell, i) => {
      const way = order.down ? "descending" : "ascending";
      cell.setAttribute("aria-sort", i === order.column ? way : "none");
      cell.querySelector("span").textContent = i === order.column ? (order.down ? " ↓" : " ↑") : "";
    });
    document.getElementById("count").textContent = `${found.length} of ${rows.length} rollouts match`;
    body.replaceChildren(...found.slice(0, limit).map(line));
    more.hidden = found.length <= limit;
  }

  function line(row) {
    const advantages = row.sample.advantages.filter((a) => a !== null);
    const against = Math.min(...advantages) < 0 && Math.max(...advantages) > 0;
    const button = make("button", { type: "button", "aria-expanded": "false" }, named(columns[0].text(row)));
    const cells = columns.slice(1).map((column) => {
      const value = column.value(row);
      const text = typeof value === "string" ? value : shown(value, column.sign);
      return make("td", column.advantage && against ? { class: "against" } : {}, make("bdi", {}, text));
    });
    row.button = button;
    const element = make("tr", { class: "row" }, make("th", { scope: "row" }, button), ...cells);
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      if (open) element.nextElementSibling.remove();
      else element.after(make("tr", { class: "detail" }, make("td", { colspan: columns.length }, ...detail(row))));
    });
    return element;
  }

  function detail({ group, sample, link }) {
    const chat = (title, list, turns = []) =>
      make("div", {}, make("h3", {}, title), ...list.map((m, i) => message(m, turns[i] && credit(group, turns[i]))));
    return [
      make("p", { class: "small" }, make("a", { href: link }, "link to this rollout")),
      make("div", { class: "texts" }, chat("prompt", viewer.prompts[group.prompt]), chat("completion", sample.completion, sample.turns)),
      ...(sample.unplaced_turns ? unplaced(group, sample.unplaced_turns) : []),
      make("h3", {}, `group of this rollout: ${group.samples.length} of ${group.size} samples`),
      siblings(group, sample),
    ];
  }

  /** The rewards and the advantage of a turn, above its text. */
  function credit(group, [number, advantage, tokens, ...rewards]) {
    const pair = (name, text) => make("span", {}, make("bdi", {}, name), " ", make("b", {}, text));
    return make("div", { class: "turn" }, make("b", {}, `turn ${number}`),
      ...group.turn_rewards.map((name, i) => pair(name, shown(rewards[i]))),
      pair("advantage", shown(advantage, true)), pair("tokens", shown(tokens)));
  }

  function unplaced(group, turns) {
    const heads = ["turn", ...group.turn_rewards, "advantage", "tokens"].map((title) => make("th", { scope: "col" }, named(title)));
    const lines = turns.map((turn) => {
      if (!turn) return make("tr", {}, make("td", { colspan: heads.length }, "…"));
      const [number, advantage, tokens, ...rewards] = turn;
      return make("tr", {}, make("th", { scope: "row" }, String(number)),
        ...rewards.map((value) => make("td", {}, shown(value))), make("td", {}, shown(advantage, true)), make("td", {}, shown(tokens)));
    });
    return [
      make("h3", {}, `turns of this rollout: ${turns.at(-1)[0]} (not shown at the messages, because the number of assistant messages differs)`),
      make("table", { class: "turns" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines)),
    ];
  }

  function message([role, start, leftOut, end], above) {
    const text = make("pre", { dir: "auto" }, start);
    if (leftOut) text.append(make("span", { class: "left-out" }, ` … ${leftOut.toLocaleString("en")} characters left out … `), end);
    const box = make("div", { class: "message" }, text);
    if (above) box.prepend(above);
    if (role) box.prepend(make("div", { class: "role" }, make("bdi", {}, role)));
    return box;
  }

  function siblings(group, mine) {
    const titles = ["sample", ...viewer.rewards, ...viewer.estimators.map((name) => `advantage: ${name}`), "tokens", "end"];
    const heads = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, named(title))));
    const lines = group.samples.map((sample) =>
      make("tr", sample === mine ? { class: "mine" } : {},
        make("th", { scope: "row" }, sample === mine ? `${sample.id} (this one)` : String(sample.id)),
        ...viewer.rewards.map((name) => make("td", {}, shown(sample.rewards[name]))),
        ...sample.advantages.map((a) => make("td", {}, shown(a, true))),
        make("td", {}, shown(sample.tokens)), make("td", {}, make("bdi", {}, sample.end))));
    return make("table", {}, make("thead", {}, heads), make("tbody", {}, ...lines));
  }

  /** Open the rollout that the address names, below all rollouts that come before it. */
  function follow() {
    if (!linked()) return;
    const row = rows.find((each) => each.link === location.hash);
    if (!row) return notHere();
    if (row.button?.isConnected && row.button.getAttribute("aria-expanded") === "true") return;
    form.reset();
    limit = Math.max(limit, matching().indexOf(row) + 1);
    draw();
    row.button.click();
    row.button.focus();
    row.button.scrollIntoView();
  }

  draw();
  follow();
  window.addEventListener("hashchange", follow);
})();
