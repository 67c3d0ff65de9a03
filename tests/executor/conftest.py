"""One thread for torch: two processes that spin for the same cores are many times slower than one that has none."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def one_thread_again(one_thread):
    """An executor made from settings sets the number of threads that they say."""
    yield
    torch.set_num_threads(1)
