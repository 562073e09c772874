"""Streaming: the exact PCA of a federation that lasts from run to run, while members join, change and leave.

The server keeps the moments of every member in the folder ``state`` (`fedpca_flwr.model.federation`). The model is that
of P-COV on the rows of all current members; docs/streaming.md has all rules. If rows arrive in a stream, take `spca`.

In the first round every site sends its number of rows, its mean and a digest (SHA-256) of its moments. Sites whose
digest differs from the server's then send their moments.
"""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.config.run_config import split_names
from fedpca_flwr.maths import moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.federation import Federation, moments_digest
from fedpca_flwr.model.solution import Certainty
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions import method
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.pooling import read_moments
from fedpca_flwr.strategies.streaming.members import MembersClient, members_questions


class StreamingOptions(method.ScaledOptions):
    """Options of the streaming method: components, scaling, folder of stored moments, leaving members, appending."""

    state: str = ""
    """Folder at the server that holds the federation. This option is required."""
    leave: str = ""
    """Names of the members that leave, with commas between them. A name that contains a comma is in double quotes."""
    append: Annotated[bool, Limits(examples=[])] = False
    """Add the sites' rows to the rows of earlier runs, instead of replacing these."""


SUM_KEY_PREFIX = "sum of "  # of the key under which the server stores a sum over all parties

CARD = method.MethodCard(
    name="streaming",
    title="Streaming",
    exact=True,
    result="The components are those of all current members' rows",
    rounds="1; 2 if any site's rows changed",
    upload="d + 6 for d features; 2d + 7 if any site's rows changed, and d(d+1)/2 from each site whose rows changed",
    server_sees="each party's covariance, and keeps it",
    disclosure=method.Disclosure(
        "its number of rows, mean and covariance matrix, and whether its rows are those of the last run (a digest of "
        "its moments); the server keeps all of this on disk until the member leaves",
        "the pooled components, mean and scales",
        "sizes and times of messages, and so which site sent something new",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, scatter and squared error, all kept on disk; the names of the sites",
        "the number, mean and variances of all rows; the pooled components",
    ),
    pools_moments=True,
    open_membership=True,
    mixed=True,
    options=StreamingOptions,
    script=lambda config, options: {**members_questions(config), **method.projection_questions()},
    examples=({"state": "federation"},),
    reference="Chan, Golub and LeVeque 1983, as for `p-cov`",
    differences="Variances have the divisor N - 1, and in the unpublished design note 001 N. If a member leaves, its "
    "moments are removed, and not subtracted from a total.",
)


class Streaming(method.Strategy):
    """Strategy of the streaming method: PCA of the stored, pooled moments of all current members.

    The server has the count, mean and scatter of each member, or with secure sums those of all members together.
    Rows that are appended merge with the stored moments. The model pools all moments as `p-cov` does.
    """

    card = CARD
    party = MembersClient
    options: StreamingOptions

    @override
    def prepare(self, config: method.RunConfig, options: method.PCAOptions, transport: ServerTransport) -> None:
        """Open the members' stored moments in `options.state`, and remove leaving members from them.

        Raise ConfigError without ``state``, for ``leave`` with secure sums, and for a state of the other transport.
        """
        assert isinstance(options, StreamingOptions)
        super().prepare(config, options, transport)
        if not options.state:
            raise method.ConfigError(
                "run-config: 'state' is missing, the server's folder that holds the federation from run to run; "
                "give state='...', the same in every run"
            )
        self.federation = Federation.open(options.state)
        self.federation.prepare()
        self._late_members: list[str] = []  # names of the members that know a later revision of the state
        self._leaving = sorted({*split_names(" ".join(options.leave.splitlines()))} - {""})
        self._sums_only = "members" in self.script
        if self._sums_only and options.leave:
            raise method.ConfigError(
                f"run-config: 'leave' is '{options.leave}', but with secure-aggregation the server has one sum over "
                "all parties, and nobody's share can be taken out"
            )
        if any(key.startswith(SUM_KEY_PREFIX) != self._sums_only for key in self.federation.members):
            content = "each member's own moments" if self._sums_only else "one sum over all parties"
            raise method.ConfigError(
                f"the federation in {options.state} holds {content}, and 'secure-aggregation' is "
                f"{str(self._sums_only).lower()}; keep it as it was, or name another folder"
            )
        for key in self._leaving:
            self.federation.leave(key)
        self._member_groups: dict[str, list[str]] = {}  # names of members by what happened to each
        self._present_moments: moments.Moments | None = None  # of the rows that the parties of this run hold

    @override
    def program(self) -> method.Program:
        """Run the method, and save the members' moments and the run's log once the run has succeeded."""
        self.federation.run = self.provenance.get("run", "")
        if self.federation.run and not self.federation.revision:  # a run that is replayed names it as before
            name = f"federation of run {self.federation.run} {self.quorum.pca_name}"
            self.federation.id = hashlib.sha256(name.encode()).hexdigest()[:32]
        yield from super().program()
        self.federation.log_run(self.provenance.get("settings", ""))
        self.federation.save()

    @override
    def aggregate(self) -> method.Fitting:
        """Update the stored moments in memory, and return the PCA of all members' rows; raise as `_collect_members`."""
        operations, evidence = yield from (self._collect_sum() if self._sums_only else self._collect_members())
        federation, parts = self.federation, self.federation.parts()
        pooled = pool(parts.values())
        keywords = {"indicators": self.config.indicators, **self.options.solve_options}
        evidence = evidence or method.Evidence(contributions=Contributions(parts))
        solution = replace(method.solve(pooled, pooled.diagonal(), **keywords), evidence=evidence)
        members, names = federation.members, dict[str, list[str]]()
        for key, operation in operations.items():
            names.setdefault(operation, []).append(key)
        absent = sorted(members.keys() - operations.keys())
        names |= {"left": self._leaving, "absent": absent}
        self._member_groups = {word: keys for word, keys in names.items() if keys}
        notes = []
        if self.quorum.simulated and absent:
            notes.append(
                f"{len(absent)} members are absent and keep their rows: if this simulation has split the same data "
                "among fewer parties, those rows count twice"
            )
        if not self.quorum.simulated and not all(party["name"] for party in self.quorum.parties):
            notes.append(
                "parties without a name are known by their partition-id, which must stay theirs: give every site a name"
            )
        measured = {
            "members": len(members),
            "member_rows": sum(members.values()),
            "members_here": len(operations),
            "revision": federation.revision + 1,
            **{f"{word}_members": len(keys) for word, keys in self._member_groups.items()},
        }
        if self._late_members:
            notes.append(
                f"the federation's state had revision {federation.revision}, and {', '.join(self._late_members)} took "
                "part in a later one: an older state was put back, or the last run failed at its very end; later "
                "changes are not in the model"
            )
        return solution.with_details(notes=notes, measurements=measured)

    @override
    def projected_rows(self, model: method.PCAModel) -> float:
        """Return the number of rows that the parties of this run hold (and append)."""
        assert self._present_moments is not None
        return self._present_moments.count

    @override
    def squared_error(self, model: method.PCAModel) -> float:
        """Return the mean squared projection error of the rows that the parties of this run hold (and append)."""
        assert self._present_moments is not None
        return squared_error(model, self._present_moments)

    def _ask_members(self, phase: str) -> Generator[method.Round, Any, list[method.Reply]]:
        """Send the federation's name and revision, return the replies, and store who knows a later revision."""
        name, revision = np.frombuffer(bytes.fromhex(self.federation.id), np.uint8), self.federation.revision
        replies: list[method.Reply]
        replies = yield method.Round(phase, {"federation": name, "revision": np.asarray(revision)})
        self._late_members = [reply.member for reply in replies if int(reply.fields["latest"]) > revision]
        return replies

    def _collect_members(self) -> Generator[method.Round, Any, tuple[dict[str, str], None]]:
        """Ask for digests and changed moments, update the stored members, and return what happened to each by its name.

        The second result, evidence, is None. Raise ConfigError if a party that takes part is to leave, or if its name
        looks like a stored sum's, and ContractError as `_read_moments`.
        """
        replies = yield from self._ask_members("digest")
        for reply in replies:
            if reply.member in self._leaving:
                raise method.ConfigError(
                    f"run-config: 'leave' names '{reply.member}', but {reply.sender} takes part in this run; "
                    "stop its node, or take it off 'leave'"
                )
            if reply.member.startswith(SUM_KEY_PREFIX):
                raise method.ConfigError(
                    f"{reply.sender}: a name may not begin with '{SUM_KEY_PREFIX}'; give it another"
                )
        digests = {reply.member: reply.fields["digest"].tobytes().hex() for reply in replies}
        has = self.federation.has
        requested = {r.party: self.options.append or not has(r.member, digests[r.member]) for r in replies}
        received: dict[str, moments.Moments] = {}
        if any(requested.values()):
            party_requests = {party: {"wanted": np.asarray(new)} for party, new in requested.items()}
            replies = yield method.Round("moments", party_requests=party_requests)
            received = {r.member: _read_moments(r, digests[r.member]) for r in replies if requested[r.party]}
        operations = {key: self._update_member(key, sha, received.get(key)) for key, sha in digests.items()}
        self._present_moments = pool(received.get(key) or self.federation.moments_of(key) for key in digests)
        return operations, None

    def _collect_sum(self) -> Generator[method.Round, Any, tuple[dict[str, str], method.Evidence]]:
        """Ask for the secure sum of all moments, update the stored sum; return what happened by its key, and evidence.

        Raise ConfigError if the federation is a sum over other parties.
        """
        replies = yield from self._ask_members("members")
        names = sorted(reply.member for reply in replies)
        key = f"{SUM_KEY_PREFIX}{len(names)} parties {hashlib.sha256(repr(names).encode()).hexdigest()[:16]}"
        if self.federation.members.keys() - {key}:
            raise method.ConfigError(
                f"the federation in {self.options.state} is a sum over other parties than take part in this run; with "
                "secure-aggregation they stay the same: let them all take part, or name another folder"
            )
        appended = self.options.append and self.federation.members
        pooling = yield from method.pooled_moments(
            self, joined=self.federation.moments().diagonal() if appended else 0.0
        )
        summed, evidence = pooling.moments, pooling.evidence
        # the diagonal from the sums of squares is never negative
        summed.scatter[moments.diagonal_positions(pooling.diagonal.size)] = pooling.diagonal
        if self.options.append:  # the rounding of earlier sums is unknown, so the model gets no bound
            evidence = replace(evidence, error_bound=np.zeros(1))
        self._present_moments = summed
        return {key: self._update_member(key, moments_digest(summed), summed)}, evidence

    def _update_member(self, key: str, sha: str, received: moments.Moments | None) -> str:
        """Store a member's moments, and return "joined", "appended", "replaced", or "unchanged" for a known digest."""
        federation, columns = self.federation, self.quorum.columns
        if (federation.has_part if self.options.append else federation.has)(key, sha):
            return "unchanged"
        assert received is not None
        if key not in federation.members:
            federation.join(key, received, columns)
            return "joined"
        if self.options.append:
            federation.append(key, received, columns)
            return "appended"
        federation.replace(key, received, columns)
        return "replaced"

    @override
    def history(self, certainty: Certainty, notes: Sequence[str], measured: Mapping[str, float]) -> dict[str, Any]:
        """Return the model's log, with ``members``: their names by "joined", "left", "absent" and so on."""
        return {**super().history(certainty, notes, measured), "members": self._member_groups}


def _read_moments(reply: method.Reply, sha: str) -> moments.Moments:
    """Return the moments in a party's reply; raise ContractError if the scatter is empty, or for another digest."""
    if not reply.fields["scatter"].size:
        raise method.ContractError(f"{reply.sender}: field 'scatter' is empty, but the server asked for it")
    received = read_moments(reply.fields)
    if moments_digest(received) != sha:
        raise method.ContractError(
            f"{reply.sender}: its moments are not those whose digest it sent; did its data change?"
        )
    return received


def squared_error(model: method.PCAModel, row_moments: moments.Moments) -> float:
    """Return the mean squared error per row after projection on the model's components, from the rows' moments.

    The moments are in the unit of the data, the error in squared units of the scaled features.
    """
    components, mean = model.loadings()
    centred_moments = moments.Moments(row_moments.count, mean, np.zeros_like(mean), row_moments.scatter_about(mean))
    scale = np.ones_like(mean) if model.scale_ is None else model.scale_
    directions = np.asfortranarray((components / scale).T)
    explained = float(np.vdot(directions, centred_moments.times(directions)))
    return max(0.0, float(np.sum(centred_moments.diagonal() / scale**2)) - explained) / row_moments.count
