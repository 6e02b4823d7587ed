"""Grafana's HTTP API, as far as it is needed, through grafana-client: every call bounded in time, every error in words.

Grafana 13 calls these paths legacy and keeps them; their successors under /apis are not in grafana-client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from draftd.cli.grafana.access import Access
from draftd.cli.grafana.errors import GrafanaError
from draftd.cli.grafana.names import Json

OLDEST = (12, 0)  # signs webhooks with HMAC
_PAGE = 1000


class GrafanaClient:
    """One Grafana. Methods answer with what came, parsed; a missing object is None. Raises GrafanaError only."""

    def __init__(self, access: Access, secrets: Sequence[str] = ()) -> None:
        from grafana_client.api import GrafanaApi  # here, for it takes a while to import

        self.access = access
        self._secrets = (*access.secrets, *secrets)
        self._api: Any = GrafanaApi(
            auth=access.token if access.token is not None else access.login,
            protocol=access.scheme,
            host=access.host,
            port=access.port,
            url_path_prefix=access.prefix,
            verify=True if access.tls_ca is None else str(access.tls_ca),
            timeout=access.timeout,
        )
        self._api.client.s.max_redirects = 0  # a redirect could carry the credentials elsewhere, or to a login page

    def version(self) -> str:
        """What it says it is; GrafanaError when it is not a Grafana, or one too old. Some keep their version secret."""
        try:
            health = self._ask("see whether it is a Grafana", "", lambda: self._api.client.GET("/health"))
        except GrafanaError as error:
            if error.code == 404:
                raise self._no_grafana() from None
            raise
        if not isinstance(health, dict) or "database" not in health:
            raise self._no_grafana()
        version = health.get("version") or self._build().get("version")
        numbers = re.match(r"(\d+)\.(\d+)", str(version or ""))
        if numbers and tuple(map(int, numbers.groups())) < OLDEST:
            raise GrafanaError(
                f"{self.access.url} is Grafana {version}; the oldest that signs alerts for the daemon is "
                f"{OLDEST[0]}.{OLDEST[1]}: upgrade it"
            )
        return str(version or "of unknown version")

    def data_sources(self) -> list[Json]:
        return self._list("list the data sources", "datasources:read", self._api.datasource.list_datasources)

    def folder(self, uid: str) -> Json | None:
        return self._maybe("read the folder", "folders:read", lambda: self._api.folder.get_folder(quote(uid, safe="")))

    def root_folders(self) -> list[Json]:
        return self._pages("list the folders", "folders:read", "/folders", {})

    def search(self, **parameters: str) -> list[Json]:
        return self._pages("search dashboards", "dashboards:read", "/search", {"type": "dash-db", **parameters})

    def dashboard(self, uid: str) -> Json | None:
        return self._maybe(
            f"read dashboard {uid}", "dashboards:read", lambda: self._api.dashboard.get_dashboard(quote(uid, safe=""))
        )

    def rules(self) -> list[Json]:
        return self._list(
            "list the alert rules", "alert.provisioning:read", self._api.alertingprovisioning.get_alertrules_all
        )

    def rule_group(self, folder_uid: str, name: str) -> Json | None:
        return self._maybe(
            f"read rule group {name}",
            "alert.provisioning:read",
            lambda: self._api.alertingprovisioning.get_rule_group(folder_uid, quote(name, safe="")),
        )

    def contact_points(self) -> list[Json]:
        return self._list(
            "list the contact points", "alert.provisioning:read", self._api.alertingprovisioning.get_contactpoints
        )

    def policies(self) -> Json:
        tree: Json = self._ask(
            "read the notification policies",
            "alert.provisioning:read",
            self._api.alertingprovisioning.get_notification_policy_tree,
        )
        return tree

    def create_folder(self, uid: str, title: str) -> None:
        self._ask("create the folder", "folders:create", lambda: self._api.folder.create_folder(title, uid))

    def put_dashboard(self, model: Json, folder_uid: str, message: str) -> None:
        """`model["version"]` is the version that it replaces; another one there is a GrafanaError with code 412."""
        body = {"dashboard": {"id": None, **model}, "folderUid": folder_uid, "message": message, "overwrite": False}
        self._ask(
            f"save dashboard {model['uid']}",
            "dashboards:create and dashboards:write",
            lambda: self._api.dashboard.update_dashboard(body),
        )

    def delete_dashboard(self, uid: str) -> None:
        self._maybe(
            f"delete dashboard {uid}",
            "dashboards:delete",
            lambda: self._api.dashboard.delete_dashboard(quote(uid, safe="")),
        )

    def put_rule_group(self, body: Json, *, locked: bool) -> None:
        self._ask(
            f"save rule group {body['title']}",
            "alert.provisioning:write",
            lambda: self._api.alertingprovisioning.update_rule_group(
                body["folderUid"], quote(body["title"], safe=""), body, disable_provenance=not locked
            ),
        )

    def delete_rule(self, uid: str) -> None:
        self._maybe(
            f"delete rule {uid}",
            "alert.provisioning:write",
            lambda: self._api.alertingprovisioning.delete_alertrule(quote(uid, safe="")),
        )

    def create_contact_point(self, body: Json, *, locked: bool) -> None:
        self._ask(
            "create the contact point",
            "alert.provisioning:write",
            lambda: self._api.alertingprovisioning.create_contactpoint(body, disable_provenance=not locked),
        )

    def update_contact_point(self, body: Json, *, locked: bool) -> None:
        self._ask(
            "save the contact point",
            "alert.provisioning:write",
            lambda: self._api.alertingprovisioning.update_contactpoint(
                body["uid"], body, disable_provenance=not locked
            ),
        )

    def put_policies(self, tree: Json, *, locked: bool) -> None:
        self._ask(
            "save the notification policies",
            "alert.provisioning:write",
            lambda: self._api.alertingprovisioning.set_notification_policy_tree(tree, disable_provenance=not locked),
        )

    def _build(self) -> Mapping[str, Any]:
        try:
            found = self._ask("ask for the version", "", self._api.health.check)
        except GrafanaError as error:
            if error.code in (401, 403):
                raise
            return {}
        return found if isinstance(found, dict) else {}

    def _pages(self, what: str, needs: str, path: str, parameters: Mapping[str, str]) -> list[Json]:
        found: list[Json] = []
        while True:
            page = {**parameters, "limit": str(_PAGE), "page": str(len(found) // _PAGE + 1)}
            got = self._list(what, needs, partial(self._api.client.GET, path, params=page))
            found += got
            if len(got) < _PAGE:
                return found

    def _list(self, what: str, needs: str, call: Callable[[], Any]) -> list[Json]:
        found = self._ask(what, needs, call)
        if not isinstance(found, list):
            raise self._no_grafana()
        return found

    def _maybe(self, what: str, needs: str, call: Callable[[], Any]) -> Json | None:
        try:
            found: Json | None = self._ask(what, needs, call)
        except GrafanaError as error:
            if error.code == 404:
                return None
            raise
        return found

    def _ask(self, what: str, needs: str, call: Callable[[], Any]) -> Any:
        from grafana_client.client import GrafanaException
        from niquests.exceptions import RequestException

        from draftd.cli.grafana.answers import Asked, explain

        try:
            return call()
        except (GrafanaException, RequestException) as error:
            asked = Asked(what, needs, self.access.url, self.access.timeout, self._secrets)
            problem = explain(error, asked)
        raise problem  # not from within the handler: what it was made from may hold the credentials

    def _no_grafana(self) -> GrafanaError:
        from draftd.cli.grafana.answers import no_grafana

        return no_grafana(self.access.url)
