"""`cotenant web`: the web console of this machine's node."""

from __future__ import annotations

import argparse
from typing import Any

from cotenant.cli.command import configure, find, group, load_own, need_packages, print_line
from cotenant.cli.kubernetes import add_api, api_client
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError


def configure_web(parser: Parser) -> None:
    configure(parser, _web, "directories")
    listener = group(parser, "Listener")
    about = "Address; on other ones than loopback, readers need the token (default 127.0.0.1:7070)."
    listener.add_argument("--listen", default="", metavar="HOST:PORT", help=about)
    about = "Let readers with the token pause, resume, evict and change tenants (default: nobody)."
    listener.add_argument("--operate", action="store_true", help=about)
    about = "A further name by which browsers may call this server; may be repeated."
    listener.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=about)
    listener.add_argument("--certificate", default="", metavar="FILE", help="TLS certificate chain, as PEM.")
    listener.add_argument("--key", default="", metavar="FILE", help="Private key of the certificate, as PEM.")
    data = group(parser, "Data")
    data.add_argument("--period", default="1s", metavar="DURATION", help="Time between two updates (default 1s).")
    about = "Inference server to show (default 127.0.0.1:8000)."
    data.add_argument("--server", default="127.0.0.1:8000", metavar="HOST:PORT", help=about)
    add_api(parser)
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)


def _web(options: argparse.Namespace) -> int:
    from cotenant.units.text import parse_duration
    from cotenant.web.serve import DEFAULT_ADDRESS, MIN_PERIOD_S, WebOptions, serve_web

    period_s = parse_duration(options.period, field="--period") / 1e9
    if not MIN_PERIOD_S <= period_s <= 60:
        raise ConfigError("--period", options.period, 'choose "200ms" to "1min"')
    web = WebOptions(
        options.listen or DEFAULT_ADDRESS,
        options.operate,
        tuple(options.allow_host),
        options.certificate,
        options.key,
        period_s,
        options.server,
        options.parent,
    )
    serve_web(find(options)[1], load_own(options), web, _Cluster(options), print_line)
    return 0


class _Cluster:
    """Reads a cluster; its modules are imported when a page first shows it, because their packages are an extra."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._view: Any = None

    def read(self) -> Any:
        if self._view is None:
            need_packages("the page about Kubernetes", "install it with: pip install 'cotenant[kubernetes]'", "yaml")
            from cotenant.web.cluster_view import ClusterView

            self._view = ClusterView(lambda: api_client(self._options))
        return self._view.read()

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
