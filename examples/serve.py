"""Anytime serving without torch: deadline and queue choose the width; unsure answers widen while there is time.

What is unsure at the end is withheld. The network is that of export.py, which is run first if any.onnx is not there.
    curl 127.0.0.1:PORT -d '{"image": [[[0.0, ...]]], "seconds": 0.05}'  →  {"class": "Coat", "width": 0.5, ...}
"""

import itertools
import json
import queue
import runpy
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np

import vnd


class Service:
    """One worker, which answers what is due first; of what it accepts at a width at most `risk` is wrong in x and y."""

    def __init__(self, path, x, y, risk=0.1, samples=6, widths=None):
        self.net, self.count = vnd.runtime.load(path, threads=1), itertools.count()
        self.noise = np.random.default_rng(0).standard_normal((samples, 1, self.net.columns), np.float32)
        rows = sorted(self.net.widths, key=lambda row: row["macs"])
        self.widths = [row["fraction"] for row in rows if widths is None or row["fraction"] in widths]
        options = {"risk": risk, "samples": samples, "seed": 0}
        self.rules = {w: vnd.runtime.selective(self.net, x, y, width=w, **options) for w in self.widths}
        self.seconds = {w: np.median([self.predict(x[:1], w)[1] for _ in range(20)]) for w in self.widths}
        self.past, self.waiting = deque([(1.0, 1.0)], maxlen=100), queue.PriorityQueue()
        threading.Thread(target=self.work, daemon=True).start()

    def predict(self, image, width):
        start = time.perf_counter()
        return self.net.predict(image, width, noise=self.noise), time.perf_counter() - start  # drawn once, for all

    def ask(self, image, seconds):
        self.waiting.put((time.monotonic() + seconds, next(self.count), image, told := Future()))
        return told.result()

    def work(self):
        while True:
            deadline, _, image, told = self.waiting.get()
            try:
                told.set_result(self.answer(image, deadline))
            except Exception as error:  # the next one shall have an answer
                told.set_exception(error)

    def share(self, deadline):
        """Seconds that an answer may take, so that each of those who wait can have as many before its deadline."""
        ends = [deadline, *sorted(entry[0] for entry in [*self.waiting.queue])]
        return min((end - time.monotonic()) / place for place, end in enumerate(ends, 1))

    def widest(self, seconds, above=0.0):
        """The widest width that 9 of 10 times ends within so many seconds, as the last hundred answers went."""
        alone, took = np.array(self.past).T
        slowdown = took.sum() / alone.sum()
        hiccup = np.quantile(took - slowdown * alone, 0.9)
        return max(
            (w for w in self.widths if w > above and slowdown * self.seconds[w] + hiccup <= seconds), default=None
        )

    def answer(self, image, deadline):
        width = self.widest(self.share(deadline) / 2) or self.widths[0]  # the rest is for an unsure one
        if not self.widest(deadline - time.monotonic()):
            return {"class": None, "why": "no time"}
        while width:
            last, (answer, seconds) = width, self.predict(image, width)
            self.past.append((self.seconds[width], seconds))
            if self.rules[width].accept(answer)[0]:
                return {"class": self.net.classes[answer.probs[0].argmax()], "width": width}
            width = self.widest(self.share(deadline), above=width)
        return {"class": None, "why": "not sure", "width": last}


class Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_POST(self):
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            image, seconds = np.asarray([asked["image"]], np.float32), float(asked["seconds"])
            if not 0 < seconds < 60:
                raise ValueError(f"seconds must lie between 0 and 60; got {seconds}")
            status, told = 200, self.server.service.ask(image, seconds)
        except (KeyError, TypeError, ValueError) as error:
            status, told = 400, {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that may be waiting


def serve(service, port=0):
    server = Server(("127.0.0.1", port), Handler)
    server.service = service
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(steps=300):
    if not Path("any.onnx").exists():
        runpy.run_path(str(Path(__file__).with_name("export.py")))["main"](steps)
    images = vnd.data.load("fashion", "test")
    x, y = images.pixels / np.float32(255), images.labels
    service = Service("any.onnx", x[:500], y[:500])
    print("ms at width:", {width: round(1000 * float(s), 2) for width, s in service.seconds.items()})
    server = serve(service)
    for seconds in (0.0001, 0.005, 0.1):
        found = Counter()
        for image, label in zip(x[1000:1050].tolist(), y[1000:1050], strict=True):
            body = json.dumps({"image": image, "seconds": seconds}).encode()
            with urlopen(f"http://127.0.0.1:{server.server_port}", body) as reply:
                told = json.load(reply)
            right = "right" if told["class"] == images.classes[label] else "wrong"
            found[told.get("why") or f"{right} at {told['width']}"] += 1
        print(f"{1000 * seconds:g} ms:", dict(found))
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
