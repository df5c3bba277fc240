from typing import final

from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.shards.boundary.page import Page

@final
class PageCounters:
    own_subs: int
    def __init__(self, page: Page, shard: int, fanout: Fanout, interest: InterestSink) -> None: ...
    def count_servers(self, exchange: Exchange) -> None: ...
