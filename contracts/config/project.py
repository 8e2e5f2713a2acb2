"""Section `project`: what `shardline project` makes in a Google Cloud project, beside what other sections name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from contracts.config.base import Section

Member = Annotated[str, Field(pattern=r"^(user|group|serviceAccount):[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+$")]


class ProjectSection(Section):
    """People, budget and extras of the Google Cloud project (`shardline project`). Nothing here changes a result."""

    users: list[Member] = []
    """Who may submit, each as user:MAIL, group:MAIL or serviceAccount:MAIL."""
    build_account: str = ""
    """E-mail address of the account that Cloud Build builds images as; unset: the project's default account."""
    monthly_budget: Annotated[int, Field(strict=True, ge=0)] = 0
    """Amount per month, in whole units of the billing account's currency: Google sends mail at 50, 90 and 100 % of it.
    It stops nothing; 0: no budget."""
    tensorboard: bool = False
    """Whether a TensorBoard of Vertex AI is made; its name is then to be written as `vertex.tensorboard`."""
