"""The monitoring pages, over HTTP and in the system account: builds documents from facts and shards' rows.

May import the boundary, the configuration, the listening sockets and supervision; none of them imports it. Only
`router.companions` and `router.serving` start it.
"""
