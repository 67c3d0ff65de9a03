"""Fetching a model from the Hugging Face hub: the files that are data, never code or pickles."""

from __future__ import annotations

from pathlib import Path

from pagedlab.core.errors import ModelError
from pagedlab.model.files import first_line

_DATA = ("*.json", "*.jinja", "*.model", "*.txt")
_WEIGHTS = ("*.safetensors",)


def download(repo_id: str, revision: str | None, weights: bool) -> Path:
    """The local snapshot of `repo_id` at `revision` (None is the main branch), downloaded where it is not cached.

    weights=False leaves the weights on the hub. ModelError in one line when it is not there or out of reach.
    """
    # Only runs that name a hub model pay for these imports.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"model.path={repo_id}" + (f" revision={revision}" if revision else "")
    try:
        return Path(
            snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=[*_DATA, *(_WEIGHTS if weights else ())],
                # Folders of a repository hold the same weights in other formats.
                ignore_patterns=["*/*"],
            )
        )
    except HFValidationError as error:
        raise ModelError(f"{where}: neither a folder nor a hub id such as owner/name") from error
    except GatedRepoError as error:
        raise ModelError(f"{where}: the hub gives it to approved accounts only; log in with `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{where}: the hub has the model but not this revision") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{where}: no such folder, and no such model on the hub") from error
    # The hub's client raises errors of many families: its own, its HTTP library's, the operating system's.
    except Exception as error:
        reason = first_line(error)
        raise ModelError(f"{where}: no such folder, and it cannot be fetched from the hub: {reason}") from error
