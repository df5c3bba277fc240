from collections.abc import Callable

from gnatswarm.loadtest.board import Board

def dial_many(
    family: int, address: bytes, count: int, before: bytes | Callable[[bytes], bytes], behind: bytes
) -> tuple[list[int], int]: ...
def churn(board: Board, index: int, descriptor: int, seconds: float) -> tuple[int, int]: ...
