import psutil
import torch.distributed as distributed

from solrl_tasks.workers.data_parallel import LOOPBACK, open_store


def test_the_store_of_a_group_of_one_machine_is_heard_by_it_alone():
    store, host, port = open_store(2, True, "192.0.2.1")
    heard = {
        c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN" and c.laddr.port == port
    }
    assert (host, heard) == (LOOPBACK, {LOOPBACK})
    store.set("key", "value")
    assert distributed.TCPStore(host, port, 2, False).get("key") == b"value"
