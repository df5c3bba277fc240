"""The configuration syntax: what the real server reads, we read alike; what is wrong is said with its place."""

from __future__ import annotations

import datetime
import os
import pathlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.router.config import conf
from gnatswarm.router.config.conf_tree import Block, ConfigError, List, Node


def plain(node: Node) -> Any:
    """The tree as dicts, lists and values."""
    if isinstance(node, Block):
        return {entry.key: plain(entry.value) for entry in node}
    if isinstance(node, List):
        return [plain(item) for item in node.items]
    return node.value


def read(text: str, **environment: str) -> Any:
    """The tree of a valid text."""
    parsed = conf.parse_text(text, file="t.conf", environment=environment)
    assert parsed.problems == []
    return plain(parsed.tree)


def complaints(text: str, **environment: str) -> list[str]:
    """The problems of a text as `line:col: what`."""
    parsed = conf.parse_text(text, file="t.conf", environment=environment)
    return [f"{p.at.line}:{p.at.column}: {p.what}" for p in parsed.problems]


@pytest.mark.parametrize(
    "text",
    [
        "port: 4222",
        "port = 4222",
        "port 4222",
        "port\t4222",
        "port : 4222",
        "port\n4222",
        "{port: 4222}",
        '{"port": 4222}',
        '{"port": 4222,}',
        "'port': 4222",
        "port: 4222;",
        "port: 4222,,",
        "# a comment\nport: 4222 // another\n# last",
        "\ufeffport: 4222\r\n",
        "\tport: 4222 \t",
        "X: 4222\nport: $X",
    ],
)
def test_every_form_of_a_key_says_the_same(text: str) -> None:
    assert read(text)["port"] == 4222


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1k", 1000),
        ("1kb", 1024),
        ("1ki", 1024),
        ("1KiB", 1024),
        ("64MB", 64 * 1024**2),
        ("1m", 10**6),
        ("2g", 2 * 10**9),
        ("1TiB", 1024**4),
        ("-1", -1),
        ("010", 10),
        ("1.5", 1.5),
        ("-0.25", -0.25),
        ("true", True),
        ("YES", True),
        ("on", True),
        ("False", False),
        ("no", False),
        ("off", False),
        ("2s", "2s"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("127.0.0.1:4222", "127.0.0.1:4222"),
        ("nats://u:p@host:4222/x", "nats://u:p@host:4222/x"),
        ("a#b", "a#b"),
        ("#secret", "#secret"),
        ('a"b', 'a"b'),
        (r"a\tb\x41", "a\tbA"),
        (r"'a\tb'", r"a\tb"),
        (r'"a\"\\\n\xc3\xa9"', 'a"\\\né'),
        ('"two\nlines"', "two\nlines"),
        ('"4222"', "4222"),
        ("'true'", "true"),
        ("$2a$11$3kIDaCxw.Glsl1", "$2a$11$3kIDaCxw.Glsl1"),
        ("$2b$11$3kIDaCxw.Glsl1", "$2b$11$3kIDaCxw.Glsl1"),
        ("2020-01-02T03:04:05Z", datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
        ("(\na (b)\n c)\n)", "\na (b)\n c)\n"),
    ],
)
def test_a_value_has_the_type_it_is_written_in(word: str, value: object) -> None:
    found = read(f"x: {word}\n")["x"]
    assert (type(found), found) == (type(value), value)


def test_lists_take_commas_and_newlines_and_comments() -> None:
    assert read("x: [1, 'b'\n c # d\n [e], {f: g} ,\n]") == {"x": [1, "b", "c", ["e"], {"f": "g"}]}


def test_blocks_nest_and_need_no_separator() -> None:
    assert read("a {\n b: { c = 1, d: 2 }\n e\n {\n f: on } }") == {"a": {"b": {"c": 1, "d": 2}, "e": {"f": True}}}


def test_variables_come_from_this_block_then_outer_ones_then_the_environment() -> None:
    text = "A: 1\nb { A: 2\n c { x: $A, y: $ENV } }\nz: $A"
    assert read(text, ENV="[1, two]", A="9") == {"A": 1, "b": {"A": 2, "c": {"x": 2, "y": [1, "two"]}}, "z": 1}


def test_a_variable_of_a_closed_block_is_unknown_outside() -> None:
    assert complaints("a { X: 1 }\nport: $X") == ["2:7: variable reference for 'X' can not be found"]


def test_an_environment_variable_that_is_no_value_is_refused() -> None:
    for text in ("a b", "{a:", "", "x\ny: 1", "$ENV"):
        (complaint,) = complaints("host: $ENV", ENV=text)
        assert complaint.startswith("1:7: variable reference for 'ENV' could not be parsed")


def test_includes_are_relative_to_the_file_that_includes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text("include sub/a.conf\nauthorization { include 'sub/b.conf' }\nport: $P")
    (tmp_path / "sub" / "a.conf").write_text("INCLUDE ./c.conf\nhost: a")
    (tmp_path / "sub" / "b.conf").write_text("user: u")
    (tmp_path / "sub" / "c.conf").write_text("P: 1234")
    tree = conf.load(str(tmp_path / "main.conf"))
    assert plain(tree) == {"P": 1234, "host": "a", "authorization": {"user": "u"}, "port": 1234}
    assert tree.entries["host"].at.file.endswith("sub/a.conf")


def test_a_circular_include_names_its_circle(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.conf").write_text("port: 1\ninclude b.conf")
    (tmp_path / "b.conf").write_text("\n\n  include ./a.conf")
    with pytest.raises(ConfigError) as caught:
        conf.load(str(tmp_path / "a.conf"))
    (problem,) = caught.value.problems
    assert (problem.at.file, problem.at.line, problem.at.column) == (str(tmp_path / "b.conf"), 3, 3)
    assert "a.conf includes b.conf includes a.conf" in problem.what


def test_files_that_include_each_other_often_end_in_one_error(tmp_path: pathlib.Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.conf").write_text(f"include {'./'}{number + 1}.conf\n" * 2)
    (tmp_path / "30.conf").write_text("")
    parsed = conf.parse_file(str(tmp_path / "0.conf"))
    assert [problem.what for problem in parsed.problems] == [f"more than {conf.MOST_FILES} files are included"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x00\x00", "control character"),
        (b"\xff\xfe\x00p", "binary file"),
        (b"port: 42\x0022", "1:9: control character"),
    ],
)
def test_binary_files_are_refused_with_the_place(tmp_path: pathlib.Path, data: bytes, words: str) -> None:
    (tmp_path / "t.conf").write_bytes(data)
    (problem,) = conf.parse_file(str(tmp_path / "t.conf")).problems
    assert words in str(problem)


def test_files_that_are_none_are_refused(tmp_path: pathlib.Path) -> None:
    def what(path: str) -> str:
        (problem,) = conf.parse_file(path).problems
        return problem.what

    assert "no such file or directory" in what(str(tmp_path / "nope.conf"))
    assert "is a directory" in what(str(tmp_path))
    assert "is a character device" in what("/dev/zero")
    assert "null" in what("a\0b")
    (tmp_path / "big.conf").write_text("# filler\n" * (conf.LARGEST_FILE_BYTES // 9 + 1))
    assert "larger than 16 MiB" in what(str(tmp_path / "big.conf"))


def _fifo(place: pathlib.Path) -> None:
    os.mkfifo(place)


def _listening(place: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_fifo, "is a fifo (named pipe), not a file"),
        (_listening, "is a socket, not a file"),
        (pathlib.Path.mkdir, "is a directory"),
        (lambda place: place.symlink_to("/dev/zero"), "is a character device, not a file"),
        (lambda place: place.symlink_to("/dev/null"), "is a character device, not a file"),
    ],
    ids=["FIFO", "socket", "directory", "device", "null device"],
)
def test_an_include_of_what_is_no_file_is_an_error_with_its_place(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[pathlib.Path], None], words: str
) -> None:
    monkeypatch.chdir(tmp_path)  # pytest's own names are too long for a socket
    make(pathlib.Path("odd"))
    (tmp_path / "t.conf").write_text("port: 4222\n\n  include odd\n")
    (problem,) = conf.parse_file("t.conf").problems
    assert str(problem.at) == "t.conf:3:3"
    assert words in problem.what
    assert "odd" in problem.what


def test_the_size_of_all_files_together_is_bounded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "MOST_BYTES", 1024 * 1024)
    (tmp_path / "big.conf").write_text("# filler\n" * 50_000)
    (tmp_path / "t.conf").write_text("include big.conf\n" * 5)
    (problem,) = conf.parse_file(str(tmp_path / "t.conf")).problems
    assert (problem.at.line, problem.at.column) == (3, 1)
    assert "all it includes are larger than 1 MiB" in problem.what


def test_a_pipe_may_be_the_configuration_itself(tmp_path: pathlib.Path) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"port: 4223\n")
        os.close(writing)
        parsed = conf.parse_file(f"/dev/fd/{reading}")
        assert (parsed.problems, plain(parsed.tree)) == ([], {"port": 4223})
        (problem,) = conf.parse_file(f"/dev/fd/{reading}").problems
        assert "nobody writes to this pipe, or it was read before" in problem.what
    finally:
        os.close(reading)
    os.mkfifo(tmp_path / "fifo")
    (problem,) = conf.parse_file(str(tmp_path / "fifo")).problems
    assert "nobody writes to this pipe" in problem.what


EMPTY = "config has no values or is empty"


@pytest.mark.parametrize(
    "text", ["", "\n  \n", "# users come here\n", "// a\n", "{}\n", "\ufeff", "include ./a.conf\n"]
)
def test_a_file_that_sets_nothing_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    """As by nats-server 2.15 with -t: a disk that was full, or a tool that was killed, left a broker open to all."""
    (tmp_path / "a.conf").write_text("\n")
    (tmp_path / "t.conf").write_text(text)
    (problem,) = conf.parse_file(str(tmp_path / "t.conf")).problems
    assert str(problem).startswith(f"{tmp_path}/t.conf: {EMPTY} — write it again")
    (tmp_path / "t.conf").write_text("port: $undefined_anywhere\n")
    assert EMPTY not in [one.what for one in conf.parse_file(str(tmp_path / "t.conf")).problems]


def test_an_included_file_that_is_empty_is_legal_and_noticed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.conf").write_text("\n")
    (tmp_path / "t.conf").write_text("port: 1\ninclude ./a.conf\n")
    parsed = conf.parse_file(str(tmp_path / "t.conf"))
    assert (parsed.problems, len(parsed.tree), len(parsed.notices)) == ([], 1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 4222 host: x", "1:12: expected a top-level value to end"),
        (": 1", "1:1: unexpected key separator ':'"),
        ("port:\nhost: a", "1:5: expected a value for 'port' but found a new line"),
        ("authorization", "1:14: 'authorization' has no value"),
        ("authorization {\n  user: }", "2:7: 'user' has no value"),
        ("a {\n b: 1", "1:3: unexpected end of file: this block is not closed"),
        ("a [1", "1:3: unexpected end of file: this list is not closed"),
        ("a: [1,,2]", "1:7: unexpected array value terminator ','"),
        ('a: "x', "1:4: unexpected end of file in a quoted string"),
        ("a: 'x", "1:4: unexpected end of file in a quoted string"),
        ('"a: 1', "1:1: unexpected end of file in a quoted key"),
        ("a: (x)", "1:4: unexpected end of file processing block string"),
        ('a: "b\\q"', "1:6: invalid escape character 'q'"),
        ('a: "\\xZZ"', "1:5: expected two hexadecimal digits after '\\x', but got 'ZZ'"),
        ('a: "\\xff"', "1:5: the \\x escapes here are not UTF-8 text"),
        ("a: -x", "1:4: expected a number after '-'"),
        ("a: 2020-01-01", "1:4: '2020-01-01' is not a full ISO8601 Zulu date"),
        ("a: 99999999999999999999", "1:4: integer '99999999999999999999' is out of the range"),
        ("a: 10e", "1:4: integer '10e' is out of the range"),
        ("a: " + "9" * 9000, "1:4: integer"),
        ("a: 64mbb", "1:4: '64mbb' has no known unit"),
        ("include", "1:8: include names no file"),
        ("include {", "1:9: expected include value but found start of a map"),
        ("a: $", "1:4: variable reference for '' can not be found"),
    ],
)
def test_errors_say_where_and_what(text: str, expected: str) -> None:
    assert complaints(text)[0].startswith(expected)


def test_all_errors_come_at_once_in_the_order_of_the_file() -> None:
    text = "port 1 2\nhost: ok\na: 'x'y\nb { c: 1 d: 2 }\nlist: [1 2]\nlast: $NOPE\n"
    assert [line.split(": ")[0] for line in complaints(text)] == ["1:8", "3:7", "4:10", "5:10", "6:7"]
    assert plain(conf.parse_text(text, environment={}).tree)["host"] == "ok"


def test_an_error_has_a_line_for_the_log_and_all_of_them_for_people() -> None:
    error = ConfigError(conf.parse_text("port 1 2\na: 'x", file="t.conf", environment={}).problems)
    assert error.in_one_line.startswith("t.conf:1:8: ")
    assert error.in_one_line.endswith(" (and 1 more)")
    assert len(str(error).splitlines()) == 2
    many = ConfigError(conf.parse_text("]\n" * 100, file="t.conf", environment={}).problems)
    assert str(many).splitlines()[-1] == "and 75 more problems"


def test_a_key_given_twice_counts_last_and_is_noticed() -> None:
    parsed = conf.parse_text("port: 1\nport: 2", environment={})
    assert plain(parsed.tree) == {"port": 2}
    assert "given again" in parsed.notices[0].what


def test_nesting_without_end_is_an_error_not_a_crash() -> None:
    for opener in ("[", "{ a: ", "{a "):
        assert "nested deeper" in complaints("a: " + opener * 100_000)[0]


@pytest.mark.parametrize("line", ["a: [$a]", "a { b: $a }"])
def test_variables_in_variables_nest_no_deeper(line: str) -> None:
    deep = complaints("a: 1\n" + f"{line}\n" * 101)
    assert any("nested deeper" in complaint for complaint in deep)
    assert complaints("a: 1\n" + f"{line}\n" * 50) == []


def test_variables_cannot_make_a_small_file_a_huge_tree() -> None:
    doubled = "".join(f"a{number + 1}: [$a{number}, $a{number}]\n" for number in range(60))
    assert "variables repeat more than 1000000 values" in complaints(f"a0: [1, 1]\n{doubled}")[0]
    often = "a: [1, 2, 3]\n" + "".join(f"b{number}: $a\n" for number in range(1000))
    assert complaints(often) == []


def test_a_long_file_is_read_in_linear_time() -> None:
    text = "".join(f"key{number} {{ a: [1, 2, 'x'] }}\n" for number in range(20_000))
    assert len(read(text)) == 20_000
    assert len(read('a: "' + "x\\n" * 300_000 + '"')["a"]) == 600_000


@given(st.text())
def test_any_text_gives_a_tree_or_problems_but_no_traceback(text: str) -> None:
    conf.parse_text(text, environment={"A": "1", "B": "{"})


PIECES = (
    "a port: = : { } [ ] ( ) \n \r\n , ; # // ' \" \\ \\x $A $B $ 1 -1 1k 1.5 .5 2020-01-01 true include \t é \ufeff"
)


@given(st.lists(st.sampled_from([*PIECES.split(" "), " "])).map("".join))
def test_any_shuffle_of_the_syntax_gives_a_tree_or_problems(text: str) -> None:
    parsed = conf.parse_text(text, environment={"A": "1", "B": "{"})
    for problem in parsed.problems:
        assert min(problem.at.line, problem.at.column) >= 1 or problem.what == EMPTY, problem


@given(st.binary())
def test_any_bytes_in_a_file_give_a_tree_or_problems(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_bytes(data)
    conf.parse_file(str(path), environment={})


SAFE_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[chr(c) for c in (*range(32), 127)]))
KEYS = SAFE_TEXT.filter(lambda key: key and '"' not in key)
TREES = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | SAFE_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def written(value: Any, style: int) -> str:
    """A value in the syntax; `style` chooses among its forms."""
    if isinstance(value, bool):
        return (("off", "on"), ("false", "true"), ("NO", "Yes"))[style % 3][value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + (", ", "\n", " # c\n ")[style % 3].join(written(item, style) for item in value) + "]"
    separator = (": ", " = ", " ")[style % 3]
    ends = (", ", "\n", ";\n")[style % 3]
    return "{ " + "".join(f'"{key}"{separator}{written(item, style)}{ends}' for key, item in value.items()) + " }"


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=5), st.integers(0, 2))
def test_what_is_written_is_read_back(tree: dict[str, Any], style: int) -> None:
    assert read(written(tree, style)) == tree
