"""What passes between other servers and this broker's shards: tests/simulation has the rest."""

from __future__ import annotations

from tests.support.members import Members


def test_a_queue_message_without_a_member_here_is_not_sent_back_to_its_server():
    cluster = Members(2, fenced=False)
    cluster.members[1].clients[0].feed(b"SUB a q 1\r\n")
    cluster.settle()
    end = cluster.routes[0, 1]
    before = len(end.socket.sent)
    end.engine.probe.feed(end.socket, b"RMSG $G a | q 1\r\nx\r\n")
    cluster.settle()
    assert b"RMSG" not in bytes(end.socket.sent[before:])
    assert not cluster.members[1].clients[0].messages()
    cluster.close()


def test_a_queue_message_without_a_member_here_goes_to_another_server_that_has_one():
    cluster = Members(3, fenced=False)
    client = cluster.members[2].clients[0]
    client.feed(b"SUB a q 1\r\n")
    cluster.settle()
    end = cluster.routes[0, 1]
    end.engine.probe.feed(end.socket, b"RMSG $G a | q 1\r\nx\r\n")
    cluster.settle()
    assert client.messages() == [(b"1", b"x")]
    cluster.close()
