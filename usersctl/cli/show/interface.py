"""`usersctl openapi`: the description of the HTTP interface, which the daemon's package writes."""

from usersctl.cli.invocation import Invocation


def show_interface(run: Invocation, *, as_page: bool = False) -> None:
    from usersd.openapi.document import document
    from usersd.routes import TABLE

    if as_page:
        from usersd.openapi.reference import page

        run.out.data(page(run.loaded.settings, TABLE))
    else:
        run.out.write_json(document(run.loaded.settings, TABLE))
