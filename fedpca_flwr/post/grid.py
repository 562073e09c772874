"""`PostGrid`: a Flower grid in a folder, whose questions and replies are files that people carry.

The server's program is replayed with the replies at hand. Where a reply is missing the process ends, and it is started
again when replies have come. So the run's number, its start and the digest of each question are stored before a
question is written, and a program that would ask something else than before ends with a sentence.
"""

import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.run import Run
from typing_extensions import override

from fedpca_flwr.errors import ConfigError, ContractError, excerpt
from fedpca_flwr.post import files
from fedpca_flwr.protocol.messages import QUERY, OwnGrid, identify_run
from fedpca_flwr.protocol.replies import LEFT_OUT
from fedpca_flwr.state.files import make_folder, utc_time

RECORD_FILE = "run.json"
VERSION = metadata.version("fedpca-flwr")
FIRST_NODE = SUPERLINK_NODE_ID + 1  # id of the first site
WAITING_CODE = 3  # exit code of a process that ends until replies have come


class PostGrid(OwnGrid):
    """Flower grid in a folder, for a run whose questions and replies are carried as files.

    Questions are in ``to-SITE``, replies come into ``from-SITE``, and run.json is the record. Nothing is ever deleted.
    Where replies are missing, the grid prints what to send to whom, and ends the process with exit code 3 (SystemExit).
    Run the same program again when replies have come, one process at a time.

    Parameters
    ----------
    folder : path
        Folder of the run, which has the run's name. A folder without a run gets a new one.
    sites : sequence of str
        Names of the sites of a new run, as in their node-configs.
    run_config : mapping, optional
        Settings of a new run, which each question tells.
    coordinator : str
        Name under which the questions of a new run come.
    key : Ed25519PrivateKey, optional
        Private key with which the coordinator signs all questions of the run.
    without : sequence of str
        Sites to leave out from the first exchange on for which only these sites have not replied.

    Raises
    ------
    ConfigError
        If the folder has no run and no site is named, or if the key or a site is not of the run.
    """

    def __init__(
        self,
        folder: str | Path,
        sites: Sequence[str] = (),
        run_config: Mapping[str, bool | int | float | str] | None = None,
        *,
        coordinator: str = "",
        key: Ed25519PrivateKey | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.folder, self._key, self._without = Path(folder), key, set(without)
        self.record: dict[str, Any] = {}
        self.exchange = 0  # number of the exchange that the program has reached
        self._paths: dict[str, tuple[str, Path, Path]] = {}  # site, question and reply, by the question's id
        self._replies: list[dict[str, str]] = []  # ids of replies by site, for each exchange
        public_key = key.public_key().public_bytes_raw().hex() if key else ""
        file = self.folder / RECORD_FILE
        if sites and not file.exists():
            name = files.path_part(self.folder.absolute().name)[:64]
            self.record |= {"run": name, "coordinator": coordinator, "version": VERSION, "key": public_key}
            self.record |= {"number": secrets.randbits(62), "began": utc_time(), "sites": list(sites)}
            self.record |= {"run-config": dict(run_config or {}), "questions": [], "replies": [], "left out": {}}
            for site in sites:
                files.Envelope.parse(self._envelope(site), source=f"site {excerpt(site)!r}")
            if len({files.path_part(site).casefold() for site in sites}) < len(sites):
                raise ConfigError(f"two of the sites {', '.join(sites)} have one folder: give them other names")
            self._save()
        try:
            self.record = json.loads(file.read_bytes())
            self.sites: list[str] = self.record["sites"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            kind = type(error).__name__
            raise ConfigError(f"{file} is of no run by post ({kind}): `post start` begins one") from None
        if unknown := sorted({*sites, *without}.difference(self.sites)):
            raise ConfigError(f"the run has no site {', '.join(unknown)}, expected of {', '.join(self.sites)}")
        if (signer := self.record["key"]) != public_key:
            raise ConfigError(f"the questions of the run are signed with {signer or 'no key'}: give the same key")
        run = Run.create_empty(self.record["number"])
        run.starting_at = self.record["began"]
        super().__init__(run)

    def __repr__(self) -> str:
        """Write the sites, and the exchange that was reached."""
        return f"{type(self).__name__}({', '.join(self.sites)}; exchange {self.exchange})"

    @property
    def notes(self) -> list[str]:
        """Line for each file among the replies that the program so far has not used."""
        expected = {reply for _, _, reply in self._paths.values()}
        paths = {path: site for site in self.sites for path in sorted(self._path("from", site, "").glob("[!.]*"))}
        why = "it has not the name of a question, with .reply, or came after its site was left out"
        return [f"{path} of {site} is not used: {why}" for path, site in paths.items() if path not in expected]

    @override
    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_NODE, FIRST_NODE + len(self.sites))

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Write the questions of the next exchange; raise ContractError if one is not as it was already sent."""
        identify_run(self)  # another grid of this process may have come since
        self.exchange += 1
        self._replies.append({})
        ids, contents = list[str](), dict[Path, bytes]()
        digests: dict[str, str] = {}
        for message in messages:
            site = self.sites[message.metadata.dst_node_id - FIRST_NODE]
            if self._is_left_out(site, self.exchange):
                ids.append(site)  # for no question
                continue
            message_id, content = files.seal(self._question(message, site), self._key)
            config, kind = message.content.config_records.get("config") or ConfigRecord(), message.metadata.message_type
            kind = "statement" if kind == QUERY else str(config.get("phase", kind))
            stem = files.path_part(f"{self.record['run']}-{self.exchange:02d}-{site}-{kind}")
            path = self._path("to", site, f"{stem}.question")
            self._paths[message_id] = site, path, self._path("from", site, f"{stem}.reply")
            ids.append(message_id)
            contents[path], digests[site] = content, message_id.partition(".")[0]
        self._record_questions(digests)
        for path, content in contents.items():
            if not path.exists():
                files.write(path, content)
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to questions; raise SystemExit if one is missing, and ContractError for wrong ones."""
        replies, faults, lines, absent = list[Message](), list[str](), list[str](), list[str]()
        for message_id in message_ids:
            site, question, path = self._paths.get(message_id, (message_id, None, None))
            if path is None:
                replies.append(self._absent_reply(site))
            elif not path.exists():
                absent.append(site)
                lines.append(f"  send {question} to {site}, and put its reply into {path.parent}")
            else:
                try:
                    replies.append(self._read_reply(path, site, message_id))
                except ContractError as error:
                    faults.append(f"{path}, reply of {site}: {error}")
        if faults:
            raise ContractError("\n".join(faults))
        if not self._without.issuperset(absent):
            head = f"{self.record['run']}: exchange {self.exchange} waits for {', '.join(absent)}"
            print("\n".join([head, *lines, *self.notes]), flush=True)
            raise SystemExit(WAITING_CODE)
        self.record["left out"] |= dict.fromkeys(absent, self.exchange)  # written before the next question
        replies += map(self._absent_reply, absent)
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)  # in whatever order a strategy asked

    # Inside

    def _save(self) -> None:
        """Write the record, and make the folders for replies."""
        for site in self.record["sites"]:
            make_folder(self._path("from", site, ""))
        files.write(self.folder / RECORD_FILE, json.dumps(self.record, indent=1).encode())

    def _path(self, direction: str, site: str, name: str) -> Path:
        """Return the path of a question ("to") or reply ("from") of a site."""
        return self.folder / f"{direction}-{files.path_part(site)}" / name

    def _is_left_out(self, site: str, exchange: int) -> bool:
        """Return whether a site is left out of an exchange."""
        return bool(exchange >= self.record["left out"].get(site, math.inf))

    def _envelope(self, site: str) -> dict[str, Any]:
        """Return what a question to a site says of its run."""
        about = {name: self.record[name] for name in ("run", "coordinator", "version")}
        return {**about, "exchange": self.exchange, "site": site}

    def _question(self, message: Message, site: str) -> Message:
        """Return a message with what it says of its run, and the run's settings."""
        records = {"post": self._envelope(site), "run-config": self.record["run-config"]}
        content = RecordDict({**message.content, **{name: ConfigRecord(values) for name, values in records.items()}})
        about = message.metadata
        return Message(content, about.dst_node_id, about.message_type, group_id=about.group_id)

    def _record_questions(self, digests: Mapping[str, str]) -> None:
        """Record the digests of an exchange's questions; raise ContractError if others were sent in this exchange."""
        if len(self.record["questions"]) < self.exchange:
            self.record["questions"].append(digests)
            self.record["replies"] = self._replies[:-1]
            self._save()
        sent = self.record["questions"][self.exchange - 1]
        changed = [site for site in self.sites if sent.get(site) != digests.get(site)]
        changed = [site for site in changed if not self._is_left_out(site, self.exchange)]
        if changed:
            raise ContractError(
                f"exchange {self.exchange}: the question to {', '.join(changed)} would be another than the one already "
                f"sent, because settings, files, the machine or the version (here {VERSION}, at the start "
                f"{self.record['version']}) have changed. Nothing was written: go on with what was there, or begin anew"
            )

    def _read_reply(self, path: Path, site: str, question: str) -> Message:
        """Return a site's reply to a question; raise ContractError, which says what to do, for any other file."""
        message = files.read_message(path)
        about, recorded = message.metadata, self.record["replies"][self.exchange - 1 :]
        sender = dict(zip(self.get_node_ids(), self.sites, strict=True)).get(about.src_node_id, "no site of the run")
        if about.run_id != self.record["number"]:
            raise ContractError(f"it is of another run, {about.run_id}: put that of run {self.record['number']} there")
        if sender != site:
            raise ContractError(f"it is of {sender}: put that of {site} there")
        if about.reply_to_message_id != question:
            raise ContractError("it answers another question of the run: put the reply to this question there")
        if recorded and recorded[0][site] != about.message_id:
            raise ContractError("it is not the reply with which the run went on: put that one back")
        self._replies[-1][site] = about.message_id
        return message

    def _absent_reply(self, site: str) -> Message:
        """Return the error that stands for the reply of a site that is left out."""
        question = Message(RecordDict(), FIRST_NODE + self.sites.index(site), QUERY)
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, LEFT_OUT), reply_to=question)
