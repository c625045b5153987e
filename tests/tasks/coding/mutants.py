"""Mutates programs by one edit of their syntax tree."""

import ast
import warnings

_OPPOSITE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def empty_body(source, _rng):
    """Empty the body of every function."""
    tree = _parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in functions:
        node.body = [ast.Pass()]
    return ast.unparse(tree) if functions else None


def wrong_constant(source, rng):
    """Increase one whole number by 1."""
    tree = _parse(source)
    places = [node for node in ast.walk(tree) if _is_whole(node)]
    if not places:
        return None
    rng.choice(places).value += 1
    return ast.unparse(ast.fix_missing_locations(tree))


def wrong_comparison(source, rng):
    """Negate one comparison."""
    tree = _parse(source)
    places = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    if not places:
        return None
    node = rng.choice(places)
    k = rng.randrange(len(node.ops))
    node.ops[k] = _OPPOSITE[type(node.ops[k])]()
    return ast.unparse(tree)


MUTATIONS = {
    "empty body": empty_body,
    "wrong constant": wrong_constant,
    "wrong comparison": wrong_comparison,
}


def _parse(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some solutions have escapes that Python does not know
        return ast.parse(source)


def _is_whole(node):
    return isinstance(node, ast.Constant) and type(node.value) is int
