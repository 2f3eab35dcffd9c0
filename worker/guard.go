package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// retryingClient is the Redis client under a server. asynq tells Redis what became of a
// task in one script, and when that fails it tries again with a context that is
// over already (asynq v0.25 and v0.26): the task stays active until its lease
// ends and then counts as failed, though it was only limited, or had succeeded.
// The guard sends such a script until Redis answers.
//
// Sending one twice is harmless: it finds the task gone from the active list, or taken anew, and
// changes nothing: see fences.
//
// From the message of a task that has succeeded it takes the text that our own put-backs left
// there: see withoutOurText.
//
// What is to last until asynq has noted the end of a run, such as the mark of a last attempt,
// it ends then: see onEnd.
//
// It also holds an idle server's looks for tasks back at the gate, and those of one whose slots
// are taken, and asks with each whether waiting tasks are woken.
type retryingClient struct {
	redis.UniversalClient
	gate  *dequeuePacer
	slots *slots
	cfg   guardConfig

	serving context.Context //nolint:containedctx // over when its server is shut down, or all are
	retire  context.CancelFunc

	stopping chan struct{}
	once     sync.Once
	untaken  untaken
	beats    beats
	ends     combiner
	fences   fences
	state    atomic.Pointer[string] // the script by which a heartbeat writes what its server does; nil: not known yet

	mu     sync.Mutex
	onEnds map[string]func() // by asynq's key of the task
}

const (
	guardTry      = 5 * time.Second
	guardPause    = 100 * time.Millisecond
	guardMaxPause = 2 * time.Second
	// guardLimit is how long a task's end is kept for a Redis that is away. asynq's
	// recoverer has it when Redis is back, if this process has not.
	guardLimit = 10 * time.Minute
	// guardLast is how long a stopping server still tries.
	guardLast = 5 * time.Second
	// mostEnds is for how many tasks the guard keeps what is to be done at their end. asynq
	// leaves the end of a task whose lease it lost to its recoverer, so some stay; beyond
	// the bound all are forgotten, and their marks expire.
	mostEnds = 10_000
)

// guardConfig is what a guard needs of its process.
type guardConfig struct {
	redis    redis.UniversalClient
	serving  context.Context //nolint:containedctx // over when no server of the process serves
	releaser *releaser
	log      *slog.Logger
	// interval is how often the server looks for tasks while it is idle, and concurrency how many it runs.
	interval    time.Duration
	concurrency int
	// giveBack puts tasks into pending that were taken and are not handed out.
	giveBack func([]*handout)
	// looks is called before each look for tasks.
	looks func()
	// forwarded is called when asynq has moved n tasks that are due into a queue.
	forwarded func(queue string, n int)
	// moves is what a server that ends waits for.
	moves *sync.WaitGroup
}

// newGuard returns the client of a server, with its gate and its slots.
func newGuard(cfg guardConfig) *retryingClient {
	g := &retryingClient{
		UniversalClient: cfg.redis, gate: newGate(cfg.interval), slots: newSlots(cfg.concurrency), cfg: cfg,
		stopping: make(chan struct{}), untaken: untaken{log: cfg.log}, ends: combiner{rdb: cfg.redis},
	}
	g.serving, g.retire = context.WithCancel(cfg.serving)
	g.gate.giveBack, g.gate.free, g.gate.pends = cfg.giveBack, g.slots.free, g.pends
	return g
}

// pends says whether a queue may have a task to be taken: a Redis that does not answer is asked for one, which brings
// the error.
func (g *retryingClient) pends(ctx context.Context, queue string) bool {
	var pending *redis.IntCmd
	err := throttle.ReadFromMaster(ctx, g.UniversalClient, func(pipe redis.Pipeliner) error {
		pending = pipe.Exists(ctx, queue+"pending")
		return nil
	})
	return err != nil || pending.Val() > 0
}

func (g *retryingClient) stop() { g.once.Do(func() { close(g.stopping) }) }

// EvalSha sends a script: again if it ends a task's run, and when it is time if it
// looks for a task.
func (g *retryingClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	args = withoutOurText(keys, args)
	if isServerState(keys) && len(args) > 0 { // else the server ends
		return g.sendState(ctx, sha, keys, args)
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.EvalSha(ctx, sha, keys, args...)
	}
	if by, is := g.fenced(ctx, keys); is {
		its := g.fences.script(sha)
		if its == nil {
			return redis.NewCmdResult(nil, noScript{})
		}
		return g.endFenced(ctx, keys, args, by, its, bare)
	}
	return g.send(ctx, keys, args, bare)
}

// Eval is EvalSha for a script that Redis did not know.
func (g *retryingClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	args = withoutOurText(keys, args)
	if isServerState(keys) && len(args) > 0 {
		g.state.Store(&script)
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.Eval(ctx, script, keys, args...)
	}
	if by, is := g.fenced(ctx, keys); is {
		return g.endFenced(ctx, keys, args, by, g.fences.learn(script), bare)
	}
	return g.send(ctx, keys, args, bare)
}

// script sends one that asynq wants sent, with arguments, by a client or in a pipeline.
type script func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd

func (g *retryingClient) send(ctx context.Context, keys []string, args []any, its script) *redis.Cmd {
	if queue, ok := dequeues(ctx, keys); ok && len(args) > 0 {
		return g.look(ctx, queue, func(ctx context.Context, n int) []found { return g.askFor(ctx, queue, n, args, its) })
	}
	if !endsRun(ctx, keys) {
		cmd := its(ctx, g.UniversalClient, args)
		if queue, ok := forwards(keys); ok {
			n, _ := cmd.Int()
			g.cfg.forwarded(queueName(queue), n)
		}
		return cmd
	}
	return g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		return g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its(ctx, rdb, args) })
	})
}

// fenced returns what goes before a script that ends a run, if the run can be told from others.
func (g *retryingClient) fenced(ctx context.Context, keys []string) (by fence, is bool) {
	if !endsRun(ctx, keys) {
		return fence{}, false
	}
	its, lease := g.fences.of(ctx, keys)
	return fence{its, lease}, its != nil
}

// end has a run's end sent until Redis answers, and does what was to be done then.
func (g *retryingClient) end(ctx context.Context, keys []string, try func(context.Context) *redis.Cmd) *redis.Cmd {
	cmd := g.untilTaken(ctx, try)
	g.ended(keys, cmd.Err())
	if lease, _ := ctx.Deadline(); isGone(cmd.Err()) && time.Now().Before(lease) {
		// Nobody else ends a run before its lease is over: a call before did, whose reply was lost.
		return redis.NewCmdResult("OK", nil)
	}
	return cmd
}

// untilTaken sends a script that ends a run until Redis answers.
func (g *retryingClient) untilTaken(ctx context.Context, try func(context.Context) *redis.Cmd) *redis.Cmd {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardLimit)
	defer cancel()
	var waits untakenTask
	for pause := guardPause; ; pause = min(2*pause, guardMaxPause) {
		bounded, done := context.WithTimeout(ctx, guardTry)
		cmd := try(bounded)
		done()
		if !mayPass(cmd.Err()) || ctx.Err() != nil {
			g.untaken.ends(waits, cmd.Err())
			return cmd
		}
		waits = g.untaken.failed(waits, cmd.Err())
		if !g.rest(ctx, pause, cancel) {
			cmd := try(ctx)
			g.untaken.ends(waits, cmd.Err())
			return cmd
		}
	}
}

// look finds a task of queue, when there is a slot for one and it is time to: one that was taken, or by ask.
func (g *retryingClient) look(ctx context.Context, queue string, ask ask) *redis.Cmd {
	g.cfg.looks()
	if !g.slots.admit(g.gate.stopped) {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	got := g.gate.look(ctx, queue, ask)
	if message, err := got.answer.Text(); err == nil {
		key := queue + "t:" + messageID(message)
		g.fences.takes(key, got.lease)
		g.slots.comes(key)
	}
	return got.answer
}

// guardKey finds the guard of a task's server in the task's context.
type guardKey struct{}

// guardOf returns nil where the server was not made by NewServer.
func guardOf(ctx context.Context) *retryingClient {
	g, _ := ctx.Value(guardKey{}).(*retryingClient)
	return g
}

// handled is a handler whose tasks know the guard.
func (g *retryingClient) handled(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return next.ProcessTask(context.WithValue(ctx, guardKey{}, g), task)
	})
}

// takeSlot gives a task a slot of its server; nil where nobody counts them.
func (g *retryingClient) takeSlot(ctx context.Context) *slot {
	if g == nil {
		return nil
	}
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	return g.slots.take(taskKey(name, id))
}

// taskKey is asynq's key of a task.
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }

// onEnd has do called when Redis has taken what became of a task, and not if this process
// dies before.
func (g *retryingClient) onEnd(queue, id string, do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.onEnds == nil || len(g.onEnds) >= mostEnds {
		g.onEnds = map[string]func(){}
	}
	g.onEnds[taskKey(queue, id)] = do
}

// ended does what was to be done when a run's end is noted: now, or by a call before whose
// reply was lost.
func (g *retryingClient) ended(keys []string, err error) {
	for _, key := range keys {
		g.slots.ended(key)
	}
	if err != nil && !errors.Is(err, redis.Nil) && !isGone(err) {
		return
	}
	g.mu.Lock()
	var do func()
	for _, key := range keys {
		if one, waits := g.onEnds[key]; waits {
			do = one
			delete(g.onEnds, key)
		}
	}
	g.mu.Unlock()
	if do != nil {
		do()
	}
}

// rest waits before the next try; a stopping server has little time left.
func (g *retryingClient) rest(ctx context.Context, pause time.Duration, cancel context.CancelFunc) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	stopping := g.stopping
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-stopping:
			last := time.AfterFunc(guardLast, cancel)
			defer last.Stop()
			stopping = nil
		}
	}
}

// endsRun tells the scripts by which asynq ends a run from all others: they go
// out under the deadline of the task's lease, and name the active list.
func endsRun(ctx context.Context, keys []string) bool {
	if _, bounded := ctx.Deadline(); !bounded || len(keys) < 2 {
		return false
	}
	for _, key := range keys {
		if strings.HasPrefix(key, "asynq:{") && strings.HasSuffix(key, "}:active") {
			return true
		}
	}
	return false
}

// forwards tells the script by which asynq moves tasks that are due into pending, and returns the prefix of their queue's keys.
func forwards(keys []string) (queue string, ok bool) {
	if len(keys) != 2 || !strings.HasSuffix(keys[0], "}:scheduled") && !strings.HasSuffix(keys[0], "}:retry") {
		return "", false
	}
	return strings.CutSuffix(keys[1], "pending")
}

// isGone tells the answer of a script that ends a run to one that has ended.
func isGone(err error) bool { return redis.HasErrorPrefix(err, "NOT FOUND") }

// mayPass tells faults that end by themselves from answers.
func mayPass(err error) bool {
	if err == nil || errors.Is(err, redis.Nil) {
		return false
	}
	var netErr net.Error
	if errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrPoolTimeout) {
		return true
	}
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
