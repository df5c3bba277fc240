"""Which accounts use the JetStream of other members of the cluster."""

from __future__ import annotations

import msgspec
import pytest

from gnatswarm.broker.jetstream import API, accounts_with_jetstream
from gnatswarm.broker.options import Account, Cluster, Export, Import, Options

IMPORT = Import("$SYS", API, is_service=True, to=API)
CLUSTER = Cluster(port=6222)


def importers(options: Options) -> set[str]:
    return {account.name for account in accounts_with_jetstream(options) if account.imports}


@pytest.mark.parametrize(
    ("accounts", "users_of_it"),
    [
        ((), {"$G"}),
        ((Account("$SYS"),), {"$G"}),
        ((Account("A"),), set()),
        ((Account("A", jetstream=True), Account("B")), {"A"}),
        ((Account("$SYS", jetstream=True), Account("A", jetstream=True)), {"A"}),
    ],
)
def test_accounts_that_have_it_import_the_api(accounts: tuple[Account, ...], users_of_it: set[str]) -> None:
    assert importers(Options(accounts=accounts, cluster=CLUSTER)) == users_of_it
    assert importers(Options(accounts=accounts)) == set()  # there is no other member


def test_the_system_account_exports_it_once() -> None:
    own = Account("SYS", exports=(Export(API, is_service=True, response="stream"),))
    options = Options(accounts=(own, Account("A", jetstream=True)), cluster=CLUSTER, system_account="SYS")
    found = {account.name: account for account in accounts_with_jetstream(options)}
    assert found["SYS"] == own
    assert found["A"].imports == (msgspec.structs.replace(IMPORT, account="SYS"),)
    imported = msgspec.structs.replace(options, accounts=tuple(found.values()))
    assert accounts_with_jetstream(imported) == tuple(found.values())
