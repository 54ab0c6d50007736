"""Compare the connections that pods have open with the network policies of their namespace."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import NODE_IP, Cluster

Object = dict[str, Any]

_ESTABLISHED = "01"
_LISTEN = "0A"


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a pod, which opened it or accepted it.

    Attributes:
        port: of the pod if it accepted, else of the peer.
    """

    accepted: bool
    peer: str
    port: int


def connections(process: Path) -> set[Connection]:
    """Return the open connections in the network namespace of a process, given as /proc/PID."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(process / "net" / name)]
    listening = {port for _, port, _, _, state in rows if state == _LISTEN}
    found = set()
    for _, port, peer, peer_port, state in rows:
        if state == _ESTABLISHED and not ipaddress.ip_address(peer).is_loopback:
            accepted = port in listening
            found.add(Connection(accepted, peer, port if accepted else peer_port))
    return found


def _rows(table: Path) -> Iterator[tuple[str, int, str, int, str]]:
    for line in table.read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        yield (*_endpoint(local), *_endpoint(remote), state)


def _endpoint(text: str) -> tuple[str, int]:
    """Parse an address of the kernel's tables: words in the order of this machine, and a port."""
    address, port = text.split(":")
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    parsed = ipaddress.ip_address(b"".join(words))
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed), int(port, 16)


class Network:
    """The pods, Services and policies of a cluster at one moment."""

    def __init__(
        self,
        pods: Sequence[Object],
        namespaces: Mapping[str, Mapping[str, str]],
        slices: Sequence[Object],
        services: Sequence[Object],
        policies: Sequence[Object],
        node_ip: str,
    ) -> None:
        self._pods = {pod["status"]["podIP"]: pod for pod in pods if pod["status"].get("podIP")}
        self._namespaces = namespaces
        self._slices = slices
        self._services = services
        self._policies = policies
        self._node_ip = node_ip

    def is_restricted(self, pod: Object) -> bool:
        """Return whether a policy selects the pod."""
        return bool(self._policies_of(pod))

    def is_allowed(self, pod: Object, connection: Connection) -> bool:
        """Return whether the policies of the pod allow the connection."""
        way, peers = ("ingress", "from") if connection.accepted else ("egress", "to")
        policies = self._policies_of(pod)
        restricting = [p for p in policies if way.capitalize() in p["spec"]["policyTypes"]]
        if not restricting:
            return True
        if connection.accepted and connection.peer == self._node_ip:
            return True  # the kubelet's probes, which no policy keeps out
        # A policy sees the pod behind a Service, and the port that the pod listens on.
        ends = self._behind(connection) if not connection.accepted else [connection]
        rules = [rule for policy in restricting for rule in policy["spec"].get(way, ())]
        return bool(ends) and all(
            any(self._matches(pod, rule, peers, end) for rule in rules) for end in ends
        )

    def _policies_of(self, pod: Object) -> list[Object]:
        return [
            policy
            for policy in self._policies
            if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and _selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])
        ]

    def _behind(self, connection: Connection) -> list[Connection]:
        for service in self._services:
            if service["spec"].get("clusterIP") == connection.peer:
                return list(self._endpoints(service, connection.port))
        return [connection]

    def _endpoints(self, service: Object, port: int) -> Iterator[Connection]:
        metadata = service["metadata"]
        (entry,) = [e for e in service["spec"]["ports"] if e["port"] == port]
        for one in self._slices:
            labels = one["metadata"]["labels"]
            if labels.get("kubernetes.io/service-name") != metadata["name"]:
                continue
            if one["metadata"]["namespace"] != metadata["namespace"]:
                continue
            name = entry.get("name", "")
            (target,) = [p["port"] for p in one["ports"] if p.get("name", "") == name]
            for endpoint in one["endpoints"]:
                yield Connection(False, endpoint["addresses"][0], target)

    def _matches(self, pod: Object, rule: Object, peers: str, end: Connection) -> bool:
        owner = pod if end.accepted else self._pods.get(end.peer)
        ports = [_number(entry["port"], owner) for entry in rule.get("ports", ())]
        if ports and end.port not in ports:
            return False
        allowed = rule.get(peers, ())
        return not allowed or any(self._is_peer(pod, peer, end.peer) for peer in allowed)

    def _is_peer(self, pod: Object, peer: Object, address: str) -> bool:
        if "ipBlock" in peer:
            return ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
        other = self._pods.get(address)
        if other is None:
            return False
        namespace = other["metadata"]["namespace"]
        if "namespaceSelector" in peer:
            if not _selects(peer["namespaceSelector"], self._namespaces[namespace]):
                return False
        elif namespace != pod["metadata"]["namespace"]:
            return False
        return _selects(peer.get("podSelector", {}), other["metadata"].get("labels", {}))


def observed(cluster: Cluster, ended: Sequence[Object] = ()) -> Network:
    """Read what decides about connections from the cluster, with pods that were there before."""

    def everywhere(kind: str) -> list[Object]:
        items: list[Object] = cluster.get(kind, "--all-namespaces")["items"]
        return items

    return Network(
        [*ended, *everywhere("pods")],
        {one["metadata"]["name"]: one["metadata"]["labels"] for one in everywhere("namespaces")},
        everywhere("endpointslices"),
        everywhere("services"),
        everywhere("networkpolicies"),
        NODE_IP,
    )


def open_connections(pod: Object) -> set[Connection]:
    """Return the connections of a pod, of any of whose processes this machine has the tables."""
    name = f"/pod{pod['metadata']['uid']}/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if name in (process / "cgroup").read_text():
                return connections(process)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return set()


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    if selector.keys() - {"matchLabels", "matchExpressions"} or any(
        one["operator"] != "In" for one in expressions
    ):
        raise ValueError(f"selectors other than matchLabels and In are not compared: {selector}")
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    one_of = all(labels.get(one["key"]) in one["values"] for one in expressions)
    return one_of and wanted.items() <= labels.items()


def _number(port: int | str, pod: Object | None) -> int | None:
    """Return the number of a port, which a policy may name as the pod's container does."""
    if isinstance(port, int):
        return port
    containers = pod["spec"]["containers"] if pod is not None else ()
    named = {p["name"]: p["containerPort"] for c in containers for p in c.get("ports", ())}
    return named.get(port)
