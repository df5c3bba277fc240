"""The digest of a configuration: of what Go writes for its values, and made so that other threads go on meanwhile."""

from __future__ import annotations

import hashlib

from gnatswarm.router.config import conf, config_digest
from gnatswarm.router.config.conf_tree import Block, List, give_up

ODD = """
b: [ 1, [2, [3, [4, [5, {deep: 5.0}]]]] ]
a { b { c { d { e { f: "<&>\u2028é" } } } } }
"k<": [ "a&b", { q: 1.5, "p>": true } ]
empty { x: [], y {} }
"""
WRITTEN = (
    r'{"a":{"b":{"c":{"d":{"e":{"f":"\u003c\u0026\u003e\u2028é"}}}}},"b":[1,[2,[3,[4,[5,{"deep":5}]]]]],'
    r'"empty":{"x":[],"y":{}},"k\u003c":["a\u0026b",{"p\u003e":true,"q":1.5}]}'
)


def test_the_digest_is_of_what_go_writes_however_deep_the_values_are() -> None:
    wanted = hashlib.sha256((WRITTEN + "\n").encode()).hexdigest()
    assert config_digest.config_digest(conf.parse_text(ODD).tree) == f"sha256:{wanted}"


def test_each_user_is_a_piece_also_those_of_an_account() -> None:
    """A router that reloads thousands of users goes on with all else between two pieces."""
    users = "\n".join(f"{{user: u{n}, password: secret}}" for n in range(1000))
    tree = conf.parse_text(f"accounts {{ A {{ users: [ {users} ] }} }}").tree
    assert max(len(piece) for piece in config_digest._pieces(tree, config_digest._PIECES_DOWN_TO)) < 100


def test_a_tree_that_is_given_up_has_nothing_left_at_any_depth() -> None:
    tree = conf.parse_text(ODD).tree
    inner: list[Block | List] = []

    def collect(node: object) -> None:
        if isinstance(node, Block | List):
            inner.append(node)
            for one in [entry.value for entry in node] if isinstance(node, Block) else node.items:
                collect(one)

    collect(tree)
    give_up(tree)
    assert len(inner) > 10
    assert not any(node.entries if isinstance(node, Block) else node.items for node in inner)
