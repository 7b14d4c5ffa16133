// The iteration that is shown: it follows a running run, stays where the reader puts it, or plays.
import { lastUpTo } from "./axes.js";

const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const CATCH_UP = 0.8; // seconds in which a page that follows has shown what is new

export class Moment {
  constructor(store) {
    this.store = store;
    this.position = 0; // between two places while it plays
    this.isPlaying = false;
    this.isFollowing = true;
    this.perSecond = 12;
    store.watch(["run", "detail", "events", "samples"], (changes) => this.update(changes));
  }

  /** The iterations that can be shown: those whose events are known, or else those whose devices are. */
  get places() {
    const { events, samples } = this.store.shown ?? {};
    return events?.k.length ? events.k : (samples?.k ?? []);
  }

  /** The seconds of these iterations, of devices on their own clocks; otherwise null. */
  get times() {
    const { seconds } = this.store.shown?.events ?? {};
    return seconds?.[0] != null ? seconds : null;
  }

  /** The axis of time: seconds or iterations, with its value at each place. */
  get axis() {
    const { times } = this;
    return times ? { name: "seconds", values: times } : { name: "iteration", values: this.places };
  }

  /** The second or the iteration that is shown. */
  get at() {
    return this.axis.values[this.place] ?? null;
  }

  get last() {
    return Math.max(0, this.places.length - 1);
  }

  get place() {
    return Math.min(this.last, Math.floor(this.position + 1e-9));
  }

  get k() {
    return this.places[this.place] ?? null;
  }

  /** The last sample of the devices up to the moment, by column: nothing is known of what comes after it. */
  get sample() {
    const { samples } = this.store.shown;
    const n = lastUpTo(samples.k, this.k === null ? Infinity : this.k + 1);
    return Object.fromEntries(Object.entries(samples).map(([name, column]) => [name, n < 0 ? null : column[n]]));
  }

  get isMoving() {
    return this.isPlaying || (this.isFollowing && this.position < this.last);
  }

  update(changes) {
    if (changes.has("run")) {
      this.isPlaying = false;
      this.isFollowing = true;
      this.position = this.last;
    } else if (this.position > this.last) this.position = this.last; // the run went on from before
    else if (this.isFollowing && (STILL.matches || this.store.currentRun?.state !== "running")) this.position = this.last;
    if (this.isMoving) this.run();
    this.store.changed("moment");
  }

  go(place) {
    this.position = Math.min(this.last, Math.max(0, place));
    this.isFollowing = this.position >= this.last;
    if (this.isFollowing) this.isPlaying = false;
    this.store.changed("moment");
  }

  toggle() {
    this.isPlaying = !this.isPlaying && this.last > 0;
    if (this.isPlaying) {
      if (this.position >= this.last) this.position = 0;
      this.isFollowing = false;
      this.run();
    }
    this.store.changed("moment");
  }

  run() {
    if (this.isRunning) return;
    this.isRunning = true;
    let before = performance.now();
    const frame = (now) => {
      const seconds = Math.min(0.1, Math.max(0, now - before) / 1000);
      before = now;
      const rate = this.isPlaying ? this.perSecond : Math.max(this.perSecond, (this.last - this.position) / CATCH_UP);
      this.position = Math.min(this.last, this.position + rate * seconds);
      if (this.isPlaying && this.position >= this.last) {
        this.isPlaying = false;
        this.isFollowing = true;
      }
      this.store.changed("moment");
      if (this.isMoving) requestAnimationFrame(frame);
      else this.isRunning = false;
    };
    requestAnimationFrame(frame);
  }
}
