# ruff: noqa: E501 - one mutant, one line
"""Mutants of the laws that results rest on: each breaks one law, and a quick test must notice.

`old` must occur exactly once in the files that `where`, a pattern below src/efhc, matches; otherwise the runner calls
the mutant stale. Keep `old` short, so that it survives edits of the lines around it.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    where: str
    old: str
    new: str
    tests: str
    """What pytest is asked to run: files, and options such as -k."""


ITERATION = "tests/core tests/kernels/test_loops.py tests/drivers"
RUNS = "tests/experiments/runs/test_simulate.py"
DEVICE = "tests/core/device"
HALF_STEPS = "tests/core/half_steps"
CLOCKS = "tests/drivers/event_driven/test_hand_worked_times.py tests/conformance/test_drivers_agree.py"
BOUNDS = "tests/theory/test_recursion.py tests/theory/test_step_size_limits.py"
LAW = "tests/strategies/test_law_by_driver.py tests/strategies/test_law.py"
TRUST = "tests/runtime/test_security.py tests/runtime/test_certificates.py tests/runtime/test_strangers.py"
NETWORKS = "tests/kernels/test_products.py tests/base/test_compiling.py tests/learning/test_compiled_network.py"
PERSONAL = "tests/conformance/test_personal_models.py tests/learning/test_personal.py tests/runtime/test_training.py"
GUARDS = "tests/watch/test_guards.py"
CLAIMS = "tests/report/test_intervals.py tests/report/test_claims.py"

SEQUENCES = "tests/network/test_graph_sequences.py"
TABLES = "tests/learning/test_tables.py"

MUTANTS = [
    # Networks and tables
    Mutant("sets of a Base-(k+1) Graph meet with another weight", "network/graph_sequences.py", "(count * size + reached) / count", "(count * size + reached + 1) / count", SEQUENCES),
    Mutant("the plain law forgets the weights of a graph", "core/law.py", "graph.weights if", "graph.metropolis_weights if", f"{SEQUENCES} -k agrees"),
    Mutant("compiled loops forget the weights of a graph", "kernels/compiled_arithmetic.py", "graph.weights if", "graph.metropolis_weights if", f"{SEQUENCES} -k agrees"),
    Mutant("test samples say what stands for missing values", "learning/data/columns.py", "_filling(known, missing)", "_filling(other, missing)", f"{TABLES} -k missing"),
    Mutant("01 and 1 are one label", "learning/data/tables.py", 'replace(r"\\.0*$", "")', 'replace(r"\\.0*$", "").str.strip_chars_start("0")', f"{TABLES} -k labels"),
    # Compiled networks
    Mutant("samples that fill a vector count", "kernels/network_loops.py", "scores[s, c] if s < len(mine) else 0", "scores[s, c]", NETWORKS),
    Mutant("every largest number takes the gradient", "kernels/network_layers.py", "left = left - taken", "left = left", NETWORKS),
    Mutant("the gradient passes where ReLU does not", "kernels/network_layers.py", "dy - where_equal(load(room, t), zero, dy)", "dy", NETWORKS),
    Mutant("a product forgets the rows that fill no tile", "kernels/products.py", " + [(rest, 1, whole * size)] * bool(rest)", "", NETWORKS),
    Mutant("hooks before a backward pass are left out", "learning/backends/module_backend.py", '("_hooks", "_pre_hooks")', '("_hooks",)', NETWORKS),
    Mutant("machine code of another network", "base/compiling.py", "codegen.magic_tuple(), self._key))", "codegen.magic_tuple()))", NETWORKS),
    # Mixing
    Mutant("weights of the smaller degree", "core/**/*.py", "np.maximum(self.degrees[i]", "np.minimum(self.degrees[i]", ITERATION),
    Mutant("weights without the device itself", "core/**/*.py", "(1.0 + np.maximum(", "(0.5 + np.maximum(", ITERATION),
    Mutant("a diagonal that is too large", "core/**/*.py", "1.0 - given_away", "1.0 - 0.99 * given_away", ITERATION),
    Mutant("a device keeps all of its model", "**/*.py", "links.weights.dtype.type(1.0 - given)", "links.weights.dtype.type(1.0)", ITERATION),
    Mutant("unused links are mixed", "**/*.py", "if used[links.link_of[e]]:", "if True:", ITERATION),
    Mutant("the last neighbour is forgotten", "**/*.py", "links.starts[i], end, alpha", "links.starts[i], end - 1, alpha", ITERATION),
    Mutant("ascent instead of descent", "**/*.py", "filled_block(models, -mixture.alpha)", "filled_block(models, mixture.alpha)", ITERATION),
    # Personal models
    Mutant("personal parameters are not trained", "learning/backends/personal.py", "**self._stepped(local, _cut(gradient, self._own), batch)", "**{PERSONAL_MODEL: local[PERSONAL_MODEL]}", PERSONAL),
    Mutant("personal steps of alpha(t) instead of alpha(k)", "learning/backends/personal.py", "number // local.steps", "number", PERSONAL),
    Mutant("Ditto is pushed away", "learning/backends/personal.py", "(v - models)", "(models - v)", PERSONAL),
    Mutant("a node has the personal model of device 0", "runtime/training.py", "initial_local(1, device)", "initial_local(1)", PERSONAL),
    # Drift
    Mutant("drift without 1/n", "kernels/model_loops.py", "np.sqrt(found / n)", "np.sqrt(found)", ITERATION),
    Mutant("drift since w(k+1) is broadcast", "core/iteration.py", "last_broadcast, fired, models)", "last_broadcast, fired, next_models)", ITERATION),
    Mutant("drift since w(k+1), compiled", "**/*.py", "copy_models(models, last_broadcast, fired, 0", "copy_models(spare, last_broadcast, fired, 0", ITERATION),
    # Thresholds and Event 2
    Mutant("strictly above the threshold", "core/iteration.py", "drifts >= thresholds", "drifts > thresholds", ITERATION),
    Mutant("strictly above the threshold, compiled", "**/*.py", "drifts[i] >= thresholds", "drifts[i] > thresholds", ITERATION),
    Mutant("only the lower end answers", "core/iteration.py", "new_links | fired[i] | fired[j]", "new_links | fired[i]", ITERATION),
    Mutant("EF-HC with one bandwidth for all", "core/**/*.py", "own: Floats = 1.0 / bandwidths.values", "own: Floats = 1.0 / np.full(len(bandwidths.values), bandwidths.nominal)", f"{ITERATION} tests/conformance"),
    Mutant("GT with the other rho", "core/**/*.py", 'if rho == "nominal" else float', 'if rho != "nominal" else float', f"{ITERATION} tests/conformance"),
    Mutant("RG with p = 1/2", "core/**/*.py", "1.0 / len(bandwidths.values) if", "0.5 if", f"{ITERATION} tests/conformance"),
    Mutant("RG fires above p", "core/**/*.py", "coins(k) < p", "coins(k) > p", f"{ITERATION} tests/conformance"),
    Mutant("gamma(k) of the first iteration of a stretch", "scenarios/**/*.py", "self._threshold_decay(k + step)", "self._threshold_decay(k)", ITERATION),
    Mutant("alpha(k) of the first iteration of a stretch", "scenarios/**/*.py", "scenario.step_size(k + step)", "scenario.step_size(k)", ITERATION),
    Mutant("steps that diminish without eta", "core/**/*.py", "(1 + k / self.timescale)", "(1 + k)", ITERATION),
    # Event 1
    Mutant("no exchange between those who meet", "core/**/*.py", "used = new_links | fired", "used = fired", ITERATION),
    Mutant("two parts are one", "core/graph.py", "lowest, (i, j) = np.arange(self.devices)", "lowest, (i, j) = np.arange(self.devices) // 2", "tests/core/test_graph.py"),
    Mutant("just in reach is out of reach", "network/topologies.py", "sum(axis=1) <= radius", "sum(axis=1) < radius", "tests/network/test_topologies.py"),
    Mutant("links that were there are new", "core/graph.py", "return ~found", "return found", ITERATION),
    Mutant("a used link stays used", "**/*.py", "used[:] = False", "used[:] = used", ITERATION),
    # Cost
    Mutant("cost without the degree", "core/**/*.py", "bandwidths / np.maximum(graph.degrees, 1)", "bandwidths", ITERATION),
    Mutant("only one end pays", "core/**/*.py", "per_device[i] + per_device[j]", "per_device[i]", ITERATION),
    Mutant("cost summed instead of averaged", "core/**/*.py", "parameters), 0.0).sum(axis=-1)", "parameters), 0.0).sum(axis=-1) * graph.devices", ITERATION),
    Mutant("the total starts anew with each step", "drivers/**/*.py", "np.concatenate([[self.time_total], times]).cumsum()[1:]", "times.cumsum()", f"tests/drivers {RUNS}"),
    # Seeds and streams
    Mutant("coins repeat every 256 iterations", "core/**/*.py", "Purpose.GOSSIP, device, ", "Purpose.GOSSIP, device, 0 * ", "tests/core"),
    Mutant("all devices toss one coin", "core/**/*.py", "Purpose.GOSSIP, device, ", "Purpose.GOSSIP, 0, ", "tests/core"),
    Mutant("seeds modulo 2^32", "core/**/*.py", "SeedSequence(self.seed, ", "SeedSequence(self.seed % 2**32, ", "tests/core"),
    Mutant("batches repeat every 256 iterations", "learning/**/*.py", "Purpose.BATCHES, device, ", "Purpose.BATCHES, device, 0 * ", "tests/learning/test_batches.py"),
    Mutant("all devices draw alike", "learning/**/*.py", "Purpose.BATCHES, device, ", "Purpose.BATCHES, 0, ", "tests/learning/test_batches.py"),
    Mutant("a sample twice in a batch", "learning/**/*.py", "while (again :=", "while False and (again :=", "tests/learning/test_batches.py"),
    Mutant("one initial model for all", "learning/**/*.py", "Purpose.INITIAL_MODELS, device", "Purpose.INITIAL_MODELS", "tests/learning/test_initial.py"),
    Mutant("bandwidths beyond their range", "network/**/*.py", "(1 + self.spread) * self.nominal", "(2 + self.spread) * self.nominal", "tests/network/test_bandwidths.py"),
    # Partition
    Mutant("labels in a fixed order", "learning/**/*.py", "randomness.stream(Purpose.PARTITION).permutation(classes)", "np.arange(classes)", "tests/learning/test_partition.py"),
    Mutant("Dirichlet cuts by floor", "learning/**/*.py", "np.round(np.cumsum(shares)", "np.floor(np.cumsum(shares)", "tests/learning/test_partition.py"),
    Mutant("devices share samples", "learning/**/*.py", "np.array_split(samples, len(holders))", "[samples] * len(holders)", "tests/learning/test_partition.py"),
    Mutant("IID without a shuffle", "learning/**/*.py", "randomness.stream(Purpose.PARTITION).permutation(len(data.y_train))", "np.arange(len(data.y_train))", "tests/learning/test_partition.py"),
    Mutant("a group on two devices", "learning/partition.py", "holder_of = holders[np.argsort(shuffled)]", "holder_of = holders", "tests/learning/test_partition.py"),
    Mutant("shards of unsorted samples", "learning/partition.py", "np.argsort(data.y_train[shuffled], kind=\"stable\")", "np.arange(samples)", "tests/learning/test_partition.py"),
    Mutant("quantities without a minimum", "learning/partition.py", "+ self.minimum * np.arange(1, devices)", "+ 0 * np.arange(1, devices)", "tests/learning/test_partition.py"),
    Mutant("tables scaled by all samples", "learning/data/dataset.py", "_ranges(x_train) if", "_ranges(np.concatenate([x_train, x_test])) if", "tests/learning/test_tables.py"),
    Mutant("all samples of a label are tested", "learning/data/dataset.py", "len(samples) - 1)", "len(samples))", "tests/learning/test_tables.py"),
    # Gradients
    Mutant("an SVM without a margin", "**/*.py", "margin = one - target", "margin = -target", "tests/learning/test_models.py tests/learning/test_learner.py tests/kernels/test_loops.py"),
    Mutant("half of a softmax gradient", "**/*.py", "scores[s, y[s]] -= share", "scores[s, y[s]] -= share / 2", "tests/learning/test_models.py tests/learning/test_learner.py tests/kernels/test_loops.py"),
    Mutant("l2 counts twice", "**/*.py", "(models, start, l2) if is_first", "(models, start, l2 + l2) if is_first", "tests/learning/test_models.py tests/learning/test_learner.py tests/kernels/test_loops.py"),
    Mutant("gradients summed instead of averaged", "learning/models/**/*.py", "by_score / by_score.dtype.type(x.shape[-2])", "by_score", "tests/learning/test_models.py"),
    # Evaluation
    Mutant("the mean model in float32", "learning/**/*.py", "models.mean(axis=0, dtype=np.float64", "models.mean(axis=0, dtype=np.float32", "tests/learning/test_learner.py"),
    Mutant("best and worst device swapped", "learning/measures.py", "values.min(), values.max()", "values.max(), values.min()", f"tests/drivers {RUNS}"),
    Mutant("no evaluation after the first iteration", "experiments/config/**/*.py", "return 1 if k == 0 else", "return min(self.evaluate_every, self.iterations) if k == 0 else", RUNS),
    Mutant("features that one sample lacks are skipped", "learning/**/*.py", "values.any(axis=2)", "values.all(axis=2)", "tests/learning/test_linear_evaluation.py"),
    Mutant("scores without the shift of the inputs", "learning/**/*.py", "data.shift * weights.sum", "0 * weights.sum", "tests/learning/test_linear_evaluation.py"),
    Mutant("an evaluation that failed is saved", "experiments/runs/**/*.py", "whole, self._whole = self._whole, None", "whole = self._whole", "tests/experiments/runs/test_evaluation.py"),
    Mutant("a checkpoint does not wait for evaluation", "experiments/runs/**/*.py", "self.finish_evaluation()\n        state, record", "state, record", "tests/experiments/runs/test_evaluation.py"),
    # Resume, keys, files
    Mutant("w_hat is lost on resume", "experiments/runs/**/*.py", 'tensors["models"], tensors["last_broadcast"]', 'tensors["models"], tensors["models"].copy()', RUNS),
    Mutant("a key without the input files", "experiments/runs/**/*.py", '"inputs": of_files', '"inputs": {}', "tests/experiments/runs/test_run_store.py"),
    Mutant("no fsync", "base/**/*.py", "os.fsync(file.fileno())", "pass", "tests/base"),
    # Strategies
    Mutant("mixing moves the mean", "core/law.py", "terms = self._terms(used, mixing.rate * self.weights)", "terms = self._terms(used, mixing.rate * self.weights * (1 + 0.1 * (self.now.graph.directed.sender == 0)))", LAW),
    Mutant("the correction of a seldom used link counts for one step", "core/law.py", "return theta / elapsed", "return theta / np.full(len(used), self.now.step_size)", LAW),
    Mutant("new neighbours are sent models for nothing", "core/law.py", "np.where(meets, whole_message_bits(y), 0)", "np.where(meets, 0, 0)", LAW),
    Mutant("credit for those without neighbours", "core/law.py", "np.where(self.now.graph.degrees > 0, income, 0.0)", "income", LAW),
    Mutant("a debt is forgiven", "core/law.py", "credit - np.where(unpaid, 0.0, cost)", "np.maximum(credit - np.where(unpaid, 0.0, cost), 0)", LAW),
    Mutant("the old model is forgotten by the momentum", "kernels/model_loops.py", "m[t] - share * pull[t]", "m[t]", LAW),
    Mutant("the correction is added", "kernels/model_loops.py", "g[t] = g[t] - h[t]", "g[t] = g[t] + h[t]", LAW),
    Mutant("links that are gone are remembered", "core/memory.py", "carried[name] = _begun(memory, now, models)\n", "carried[name] = np.ones_like(_begun(memory, now, models))\n", LAW),
    # Verdicts
    Mutant("plain percentiles", "report/**/*.py", "-sqrt(n / (n - 1)) * stdtrit(", "-stdtrit(", CLAIMS),
    Mutant("the mean decides", "report/**/*.py", "elif low > ROUNDING:", "elif mean > ROUNDING:", CLAIMS),
    Mutant("two seeds are enough", "report/**/*.py", "len(per_seed) < FEWEST_SEEDS", "len(per_seed) < 2", CLAIMS),
    Mutant("one that fails is outvoted", "report/**/*.py", "if Verdict.FAILS in ", "if {Verdict.FAILS} == ", CLAIMS),
    # Bounds
    Mutant("a_22 not squared", "theory/**/*.py", "a22=(1 + growth) ** 2", "a22=1 + growth", BOUNDS),
    Mutant("half of phi_22", "theory/**/*.py", "16 * B * L**2 * gradients", "8 * B * L**2 * gradients", BOUNDS),
    Mutant("c_1 without 1/m", "theory/**/*.py", "c1=alpha**2 * sigma2 / m", "c1=alpha**2 * sigma2", BOUNDS),
    Mutant("twice the largest step size", "theory/**/*.py", "8 * _slowdown(constants)", "4 * _slowdown(constants)", BOUNDS),
    Mutant("a gap without phi_12", "theory/**/*.py", "(psi1 + phi12 * consensus) / (1 - phi11)", "psi1 / (1 - phi11)", BOUNDS),
    Mutant("a promised window that is too short", "theory/**/*.py", "(broadcast // physical + 2)", "(broadcast // physical + 1)", "tests/theory/test_windows.py"),
    Mutant("a sufficient window that is too short", "theory/**/*.py", "self.physical.length + self.broadcast.length - 1", "self.physical.length + self.broadcast.length - 2", "tests/theory/test_windows.py"),
    # Tuning
    Mutant("a spent budget is exceeded", "experiments/studies/tuning_search.py", "total > self.of_seed(seed) for", "total >= self.of_seed(seed) for", "tests/experiments/test_tune.py -k budget"),
    Mutant("tuned on the test samples", "experiments/studies/tuning_search.py", "self.experiment.validation or VALIDATION", "None", "tests/experiments/test_tune.py -k validation"),
    # One device on its own clock
    Mutant("all of what is free is offered", "core/device.py", "device.free / 2", "device.free", DEVICE),
    Mutant("the greater share is the weight", "core/device.py", "theirs.share < exchange.share", "theirs.share > exchange.share", DEVICE),
    Mutant("w_i is offered", "core/device.py", "self.combine([(1.0 / rest, self.device.model), *terms])", "self.device.model", DEVICE),
    Mutant("both ends decide", "core/device.py", "exchange.decides = self.device.number < neighbour", "exchange.decides = True", DEVICE),
    Mutant("a refused offer is forgotten", "core/device.py", "link.pending_offer = 0 if self.device.leaving else link.pending_offer or 2", "link.pending_offer = 0", DEVICE),
    Mutant("the record answers no question", "core/device.py", "(protocol.Commit if committed else protocol.Withdraw)", "(protocol.Withdraw if committed else protocol.Withdraw)", DEVICE),
    Mutant("a restart forgets doubts", "core/device.py", "if link.in_doubt}", "if False}", DEVICE),
    Mutant("steps in the order of commits", "core/device.py", "sorted(device.steps, key=_neighbour_of)", "device.steps[::-1]", CLOCKS),
    Mutant("a model takes no time", "drivers/event_driven/in_flight.py", "(self._parameters, self.model_bytes) if is_model", "(0, self.model_bytes) if is_model", CLOCKS),
    Mutant("no timer runs out", "drivers/event_driven/timers.py", "if since + self._seconds > run.now:", "if True:", "tests/drivers/event_driven/test_hand_worked_times.py -k patience"),
    Mutant("a repeated frame is a step again", "core/half_steps.py", "is_repeated, last, effects = frame.number <= end.last_received", "is_repeated, last, effects = frame.number < end.last_received", HALF_STEPS),
    Mutant("h keeps the part of a link that is gone", "core/half_steps.py", "effects.append(TakeBack(neighbour, end.link_correction))", "pass", HALF_STEPS),
    Mutant("two that have just met wait for the trigger", "core/half_steps.py", "0.0 if end.is_new or is_redundant else decided", "0.0 if is_redundant else decided", "tests/conformance/test_drivers_agree.py -k half"),
    # Whom a node talks to
    Mutant("no certificate is asked for", "runtime/security.py", "context.verify_mode = ssl.CERT_REQUIRED", "context.verify_mode = ssl.CERT_OPTIONAL", TRUST),
    Mutant("TLS 1.2 will do", "runtime/security.py", "ssl.TLSVersion.TLSv1_3", "ssl.TLSVersion.TLSv1_2", TRUST),
    Mutant("a key that its group can read", "runtime/security.py", "mode & 0o077", "mode & 0o007", TRUST),
    Mutant("a certificate of any device", "runtime/security.py", "if named != device:", "if False:", TRUST),
    Mutant("a certificate that has expired", "runtime/security.py", "if now > end:", "if False:", TRUST),
    Mutant("insecure beyond loopback", "runtime/security.py", "if not Address.of(text).is_loopback:", "if False:", TRUST),
    Mutant("a renewed certificate is ignored", "runtime/security.py", "if (now := _versions(self._tls)) == self._seen:", "if True:", TRUST),
    Mutant("an authority signs any name", "runtime/certificates.py", "x509.NameConstraints([x509.DNSName(DOMAIN)], None)", "x509.NameConstraints([x509.DNSName('')], None)", TRUST),
    Mutant("keys that others can read", "runtime/certificates.py", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)", TRUST),
    # Who may read the live page
    Mutant("any name is ours", "watch/guards.py", "return is_loopback(urlsplit", "return True or is_loopback(urlsplit", GUARDS),
    Mutant("other sites may ask", "watch/guards.py", 'site not in ("same-origin", "none") and not leads_here', "False", GUARDS),
    Mutant("the origin does not matter", "watch/guards.py", "return origin is None or origin ==", "return True or origin ==", GUARDS),
    Mutant("an open address without a token", "watch/guards.py", "if token is None and not is_loopback(host):", "if False:", GUARDS),
    Mutant("any token will do", "watch/guards.py", "hmac.compare_digest(given.encode(), self.token.encode())", "bool(given)", GUARDS),
    Mutant("a flood fills the log", "runtime/logs.py", "of_reason >= PER_REASON or", "False or", "tests/runtime/test_logs.py"),
]  # fmt: skip
