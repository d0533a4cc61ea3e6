// The socket of a run: snapshot, then events by seq; a gap asks for a snapshot; polling where sockets are blocked.
const POLL_MS = 5_000, FIRST_WAIT_MS = 1_000, LONGEST_WAIT_MS = 30_000, SILENT_MS = 45_000, POLL_AFTER_FAILURES = 2;

export class Connection extends EventTarget {
  constructor({ path, liveUrl }) {
    super();
    this.path = path;
    this.liveUrl = liveUrl;
    this.seq = null;
    this.failures = 0;
    this.state = "connecting";
    this.retryAt = 0;
    this.heardAt = 0;
    this.over = false;
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    this.socket = socket;
    socket.addEventListener("open", () => { this.heardAt = Date.now(); });
    socket.addEventListener("message", (event) => { if (socket === this.socket) this.#receive(JSON.parse(event.data)); });
    socket.addEventListener("close", (event) => { if (socket === this.socket) this.#closed(event); });
    if (this.watch) return;
    this.watch = setInterval(() => this.#check(), 1_000);
    addEventListener("online", () => this.retryNow());
    addEventListener("offline", () => this.#drop());
  }

  retryNow() {
    if (this.socket || this.state === "refused") return;
    clearTimeout(this.timer);
    this.open();
  }

  // Without a network the closing handshake never ends, so its close event is not waited for.
  #drop() {
    if (!this.socket) return;
    this.socket.close();
    this.#closed({ code: 0 });
  }

  #receive(message) {
    this.heardAt = Date.now();
    this.failures = 0;
    this.state = "live";
    clearInterval(this.poller);
    this.poller = null;
    this.#take(message);
  }

  #take(message) {
    if (message.type === "snapshot") this.seq = message.seq;
    else if (message.type === "events") {
      if (this.seq === null || message.seq <= this.seq) return;
      if (message.seq !== this.seq + 1) { this.resync(); return; }
      this.seq = message.seq;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  resync() {
    this.seq = null;
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resync" }));
  }

  #closed(event) {
    this.socket = null;
    this.seq = null;
    // 4401/4403/4404: the server will not have us; asking again changes nothing.
    if (event.code >= 4400 && event.code < 4500) { this.state = "refused"; this.#tell(); return; }
    this.failures++;
    this.state = "offline";
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (this.failures - 1));
    const wait = longest / 2 + Math.random() * (longest / 2);
    this.retryAt = Date.now() + wait;
    this.timer = setTimeout(() => this.open(), wait);
    if (this.failures >= POLL_AFTER_FAILURES && !this.poller) {
      this.poller = setInterval(() => this.#poll(), POLL_MS);
      this.#poll();
    }
    this.#tell();
  }

  async #poll() {
    try {
      const response = await fetch(this.liveUrl, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (!response.ok) throw new Error(String(response.status));
      this.heardAt = Date.now();
      this.state = "polling";
      this.#take(await response.json());
    } catch {
      this.state = "offline";
    }
    this.#tell();
  }

  // A socket can die without a word: pings come every 20 s.
  #check() {
    if (this.socket?.readyState === WebSocket.OPEN && Date.now() - this.heardAt > SILENT_MS) this.#drop();
    this.#tell();
  }

  #tell() { this.dispatchEvent(new Event("state")); }
}
