"""redis-py and redlock-py at the other end of a pipe: one JSON array in, [function, arguments...], one JSON value out."""

import json
import sys
import time

import redis
import redlock
from redis.exceptions import LockError, LockNotOwnedError

client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
redlocks = redlock.Redlock([sys.argv[1]], retry_count=1, retry_delay=0.001)
locks = {}

# The script that every such library has, as the Redis documentation gives it.
DELETE_IF_EQUAL = client.register_script(
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
)


def version():
    return redis.__version__


def acquire(key, timeout, wait):
    """redis-py's Lock; `wait` is None for one try, else how long to go on trying, in seconds."""
    lock = client.lock(key, timeout=timeout, sleep=0.002, thread_local=False)
    if not lock.acquire(blocking=wait is not None, blocking_timeout=wait):
        return False
    locks[key] = lock
    return True


def release(key):
    try:
        locks.pop(key).release()
    except LockNotOwnedError:
        return "not owned"
    except LockError:
        return "not locked"
    return "released"


def extend(key, timeout):
    try:
        return locks[key].extend(timeout, replace_ttl=True)
    except LockError:
        return False


def locked(key):
    return client.lock(key).locked()


def redlock_lock(key, milliseconds):
    lock = redlocks.lock(key, milliseconds)
    locks[key] = lock
    return bool(lock)


def redlock_unlock(key):
    redlocks.unlock(locks.pop(key))


def set_nx(key, token, milliseconds):
    return bool(client.set(key, token, nx=True, px=milliseconds))


def set_for_ever(key, token):
    return bool(client.set(key, token, nx=True))


def delete_if_equal(key, token):
    return DELETE_IF_EQUAL(keys=[key], args=[token])


def delete(key):
    return client.delete(key)


def get(key):
    return client.get(key)


def count(key, counter, times):
    """Adds one to `counter` `times` times, by a read and a write that only the lock keeps together."""
    for _ in range(times):
        with client.lock(key, timeout=30, sleep=0.001):
            value = int(client.get(counter) or 0)
            time.sleep(0.0005)
            client.set(counter, value + 1)
    return times


for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
