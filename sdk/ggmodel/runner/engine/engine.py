"""One loaded model serving many requests at once."""

from __future__ import annotations

import numpy as np

from ...errors import ConfigError, GraphError, PromptError, TensorError
from ...kvcache import Cache, Declared, new_cache, several
from ...ml import Backend, DType
from ...model import Input, Model
from ...resources import as_error, closed_on_error
from .adapters import Adapter, Strengths
from .drafting import Drafter
from .graphs import Graphs
from .images import MultimodalStore
from .inputs import Histories, InputTable
from .memory_plan import MemoryPlan
from .next_token import NextTokenHead
from .prefix_files import PrefixFiles
from .prefix_store import PrefixStore
from .prefix_writer import Origin
from .saved import SavedPrefixes
from .scheduler import Scheduler
from .sequences import Request, Sequences
from .speculation import Speculation
from .step import BatchPlanner, StepRunner
from .thread import EngineThread


class Engine(EngineThread):
    """Owns cache, graphs and sequences of a loaded model, and the thread that computes on them.

    Requests, and whatever else computes, are messages to that thread (`submit`, `call`).

    Args:
        context_length: positions a sequence may have.
        batch_size: the most tokens computed at once.
        parallel: how many sequences there may be at a time.
        cache_ram: MiB for prefixes that no sequence holds any more.

    Attributes:
        vocabulary: token ids are below this.
        single_step: a text has to be computed in one batch; nothing can be generated.
        only_embeds: texts are computed by `graphs`, as many in a step as there is room for; the
            cache holds nothing of them but their lengths.
        can_rewind: the latest positions of a sequence can be taken back.
        images, inputs: the images of prompts, and the numbers of inputs that stand for them.
        memory_plan: the graphs that need most memory, traced and not yet reserved.
        loaded: the adapters. adapters: those of requests that do not choose.
        store: of prefixes on disk; None without.
    """

    store: PrefixStore | None = None

    def __init__(
        self,
        model: Model,
        backend: Backend,
        *,
        kv_type: DType,
        context_length: int,
        batch_size: int,
        parallel: int,
        cache_ram: int = 0,
    ):
        super().__init__(backend.turn)
        self.model, self.backend, self.kv_type = model, backend, kv_type
        self.loaded, self._retired, self.adapters = list[Adapter](), list[Adapter](), Strengths()
        self.context_length, self.batch_size = context_length, batch_size
        specs = [spec for entry in self._declared_caches() for spec in several(entry)]
        self.single_step = any(s.single_step for s in specs)
        self.only_embeds = model.only_embeds and all(s.single_step for s in specs)
        self.can_rewind = all(s.can_rewind for s in specs)
        self.images = MultimodalStore(model, backend, self.in_thread)
        self.inputs = InputTable(any(s.stores_images for s in specs), model.bidirectional_images)
        self.memory_plan = MemoryPlan(model, backend, self.images, self.inputs)
        self.inputs.forget(())
        # A group of an image and a token of every other sequence fit together.
        most = max(batch_size, self.memory_plan.largest_group + parallel - 1)
        sequences = batch_size if self.only_embeds else parallel
        self.cache = self.new_cache(sequences, context_length, most)
        histories = Histories.of(model, self.inputs)
        checkpoints = not self.can_rewind
        after_items = checkpoints and bool(model.modalities())
        rows = self.memory_plan.rows
        self.planner = BatchPlanner(
            self.inputs, batch_size, most, rows, histories, after_items, checkpoints
        )
        self.head = None
        if getattr(model, "mtp", None) is not None:
            self.head = NextTokenHead(model, backend, kv_type, parallel, context_length)
        self.graphs = self._new_graphs(histories)
        backend.keep_graphs(self.graphs.usual)
        moves, saved = not backend.params.deterministic, SavedPrefixes(cache_ram << 20)
        self.sequences = Sequences(self.cache, self.inputs, parallel, histories, moves, saved)
        self.speculation = Speculation(context_length, batch_size)
        self.scheduler = Scheduler(
            self.sequences, self.inputs, self.planner, self.speculation, context_length
        )
        self.steps = StepRunner(
            self.sequences,
            self.planner,
            self.graphs,
            self.scheduler.upcoming,
            masks_exactly=backend.flash_attention,
        )
        with closed_on_error(self):
            try:
                self.vocabulary = self.memory_plan.trace(self.cache, parallel)
                if self.head is not None:
                    self.head.trace(self.memory_plan)
            except Exception as error:
                raise as_error(error)  # noqa: B904 (it has its cause)

    def _new_graphs(self, histories: Histories | None) -> Graphs:
        """Graphs of the cache: texts have more lengths than a cache has ranges of cells."""
        if self.only_embeds:
            return Graphs(self.model.states, self.backend, self.cache, histories, most=128)
        keeps_states = self.head is not None
        return Graphs(self.model, self.backend, self.cache, histories, keeps_states)

    def new_cache(self, sequences: int, capacity: int, max_batch: int) -> Cache:
        return new_cache(
            self.backend,
            self._declared_caches(),
            dtype=self.kv_type,
            sequences=sequences,
            capacity=capacity,
            max_batch=max_batch,
        )

    def _declared_caches(self) -> Declared:
        layers = self.model.caches()
        if not isinstance(layers, list):
            raise TensorError(
                f"{type(self.model).__name__}.caches() returned {type(layers).__name__}; it must "
                "return a list with one entry a layer"
            )
        return layers

    def draft_with(self, drafter: Drafter) -> None:
        """Has it draft for all requests, where prompt lookup does not; before the first one."""
        self.speculation.drafters.append(drafter)

    def store_prefixes(self, files: PrefixFiles, origin: Origin) -> None:
        """Has it keep prefixes on disk, too; before the first request."""
        if not self.single_step:
            self.store = PrefixStore(files, self.sequences, origin, self.wake)
            self.scheduler.store, self.planner.block = self.store, self.store.block

    # messages from any thread

    def retire(self, adapter: Adapter) -> None:
        """Frees an adapter as soon as no request has it."""
        self.call(lambda: self._retired.append(adapter))

    def submit(self, request: Request) -> None:
        """Takes a request in, which begins as soon as a sequence is free; first come, first served.

        Raises:
            GraphError: the engine is closed, or belongs to another process.
            Busy: the engine's own thread asks, from a callback.
            ConfigError: it wants a slot that does not exist.
            PromptError: inputs that must be computed together exceed a batch.
        """
        self.check_caller()
        slots = len(self.sequences.all)
        if request.slot is not None and not 0 <= request.slot < slots:
            raise ConfigError(f"there is no slot {request.slot}; the model has {slots} (parallel)")
        group = self.inputs.largest_group(request.prompt.tolist())
        if group > self.planner.most:
            raise PromptError(
                f"{group} inputs of the prompt must be computed together, and a batch has at most "
                f"{self.planner.most}; load the model with a larger batch_size"
            )
        self._send(lambda: self.scheduler.waiting.append(request))

    def cancel(self, request: Request) -> None:
        """Ends a request, after the step under way. A request that is done stays so."""
        request.cancelled = True
        self.wake()

    def number(self, inputs: list[Input]) -> np.ndarray:
        """Inputs as numbers int32 [n], which mean something as long as this array lives."""

        def number() -> np.ndarray:
            self.inputs.forget(self.sequences.known)
            return self.inputs.keep(np.array(self.inputs.number(inputs), np.int32))

        return self.call(number)

    def keep(self, numbers: np.ndarray) -> np.ndarray:
        """Has these numbers int32 [n] mean something as long as this array lives."""
        return self.call(lambda: self.inputs.keep(numbers))

    # in the engine's thread

    def step(self) -> bool:
        scheduler = self.scheduler
        scheduler.admit()
        if self._retired:
            self._free_retired()
        chunks = scheduler.schedule()
        if not chunks:
            return scheduler.admit()  # a full context may have ended
        ended = False
        for one, result in self.steps.results(chunks):
            ended |= one.sequence.take(result, one.drafts if one.drafted else ())
            if self.store is not None:
                self.store.computed(one.sequence, one.start)
            if (
                self.head is not None
                and (states := self.steps.states.get(one.sequence)) is not None
            ):
                self.head.observe(one.sequence, states)
        if scheduler.speculates:
            self.speculation.computed(chunks, self.graphs.recorded)
        if ended:
            scheduler.admit()
        return True

    @property
    def computed(self) -> tuple[int, int]:
        """The steps of the model so far, and the sequences in them added up. Steps of heads and
        drafting models do not count."""
        return self.steps.steps, self.steps.in_steps

    def count_step(self, sequences: int) -> None:
        """Adds a step that went well, of others than the scheduler, to `computed`."""
        self.steps.steps += 1
        self.steps.in_steps += sequences

    def _free_retired(self) -> None:
        requests = [*self.scheduler.waiting, *(one.request for one in self.sequences.working)]
        used = {adapter for r in requests if r is not None for adapter, _ in r.adapters}
        for adapter in [one for one in self._retired if one not in used]:
            for sequence in self.sequences.all:
                if sequence.request is None and any(one is adapter for one, _ in sequence.adapters):
                    sequence.adapters, sequence.variant = (), None
                    sequence.cut(0)
            self._retired.remove(adapter)
            if adapter in self.loaded:
                self.loaded.remove(adapter)
            adapter.close()

    def stalled(self) -> bool:
        return self.scheduler.refuse_stuck()

    def end(self) -> None:
        self.abandon(GraphError("the model was closed while it generated"))
        if self.store is not None:
            self.store.close()
        self.graphs.close()
        self.images.encoders.close()
        if self.head is not None:
            self.head.close()
        for adapter in (*self.loaded, *self._retired):
            adapter.close()
        self.cache.close()

    def abandon(self, error: BaseException) -> None:
        self.scheduler.fail_all(error)
