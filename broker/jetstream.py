"""JetStream of other members of the cluster, as a nats-server without JetStream offers it to its clients.

This broker stores nothing. Requests to JetStream's API are a service of the system account, which other members
answer; an account whose clients use it imports that service, as if its configuration said so. Streams and consumers
themselves are ordinary interest in the account, told by routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account, Export, Import

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options

API = "$JS.API.>"
# Streams and consumers hear these in the account itself: such requests follow no import, as in nats-server.
STAYS = (b"$JS.API.CONSUMER.MSG.NEXT.", b"$JS.API.DIRECT.GET.")


def accounts_with_jetstream(options: Options) -> tuple[Account, ...]:
    """The accounts of the options, and $G if it has rules; with the import of JetStream's API where they have it.

    In a cluster that is each account with `jetstream` in its block; and $G if no accounts are configured beside the
    system account's, as on nats-server.
    """
    accounts = {account.name: account for account in options.accounts}
    system = options.system_account
    using = [account.name for account in options.accounts if account.jetstream] if options.cluster.port else []
    is_global = bool(options.cluster.port) and not set(accounts) - {system}
    if options.mappings or is_global:
        accounts[GLOBAL_ACCOUNT] = Account(GLOBAL_ACCOUNT, mappings=options.mappings)
    if is_global:
        using.append(GLOBAL_ACCOUNT)
    using = [name for name in using if name != system and not _imports_api(accounts[name])]
    if using:
        exporter = accounts.get(system) or Account(system)
        if not any(export.is_service and export.subject == API for export in exporter.exports):
            export = Export(API, is_service=True)
            accounts[system] = msgspec.structs.replace(exporter, exports=(*exporter.exports, export))
        for name in using:
            account = accounts[name]
            imported = Import(system, API, is_service=True, to=API)
            accounts[name] = msgspec.structs.replace(account, imports=(*account.imports, imported))
    return tuple(accounts.values())


def _imports_api(account: Account) -> bool:
    return any(one.is_service and one.to == API for one in account.imports)
