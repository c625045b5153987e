"""What a model could write to break a page, or to run something in it."""

TEXTS = {
    "script": "<script>window.broken = 1</script>",
    "end of script": "</script><script>window.broken = 1</script>",
    "end without its end": "</script <script>window.broken = 1</script ",
    "comment": "<!--<script >window.broken = 1//",
    "handler": '"><img src=x onerror="window.broken=1"><svg onload=window.broken=1>',
    "attribute": "' onfocus='window.broken=1' autofocus x='",
    "template": "${window.broken=1} $data {{data}} `",
    "entities": "&lt;b&gt; &amp; &#60;script&#62;",
    "reversed": "\u202egnp.exe\u202c \u2066\u200f\u061c",
    "controls": "\x00\x07\x1b[31m\x7f\ufeff\U000e0041",
    "lines": "\u2028\u2029\r\n\x85",
    "surrogates": "\ud800 and \udfff",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 <b>\u05e9\u05dc\u05d5\u05dd</b>",
    "long line": "0123456789" * 100_000,
    "link": "javascript:window.broken=1 https://example.com/x.js",
    "url": "<link rel=stylesheet href=//example.com/x.css><base href=//example.com>",
}

CHATS = {
    "many messages": [{"role": "user", "content": f"message {i}"} for i in range(2_000)],
    "odd messages": [{"role": None, "content": None}, {"content": "no role"}, {"role": "x" * 9999}],
    "content that is no text": [{"role": "user", "content": [{"type": "text", "text": "<b>"}]}],
}
