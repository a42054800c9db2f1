"""Privacy accounting: how often each client uploads, and the privacy loss of the client with the most uploads."""

import torch

from fedweave.engine.schedule import participation_counts
from fedweave.engine.timeline import Timeline


class Accountant:
    """Counts the uploads of each client, from one evaluation to the next.

    Participation is a function of the seed, so a run that continues from a checkpoint counts again from round 0.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.rounds, self.uploads = 0, torch.zeros(timeline.everybody.clients, dtype=torch.int64)

    def privacy_loss(self, rounds: int) -> dict[str, float]:
        """{"epsilon": the largest privacy loss of a client in the first `rounds` rounds}; empty without privacy."""
        privacy = self.timeline.settings.upload_path.privacy
        if privacy is None:
            return {}
        return {"epsilon": privacy.epsilon(self._most_uploads(rounds) + self.timeline.enrolments(rounds))}

    def _most_uploads(self, rounds: int) -> int:
        settings, timeline = self.timeline.settings, self.timeline
        present = [
            timeline.federation(round).clients if timeline.stage(round)[0].method.uploads_in(round) else 0
            for round in range(self.rounds, rounds)
        ]
        ids = timeline.everybody.ids.cpu()
        self.uploads += participation_counts(settings.seed, self.rounds, present, ids, settings.participation)
        self.rounds = rounds
        return int(self.uploads.max())
