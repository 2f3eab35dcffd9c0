package asynqx

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

	"github.com/headway-go/headway/internal/redisread"
)

// Client is the Redis client under a server. asynq tells Redis what became of a
// task in one script, and when that fails it tries again with a context that is
// over already (asynq v0.25 and v0.26): the task stays active until its lease
// ends and then counts as failed, though it was only limited, or had succeeded.
// The client sends such a script until Redis answers.
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
// It also holds an idle server's looks for tasks back at the pacer, and those of one whose slots
// are taken, and asks with each whether waiting tasks are woken.
type Client struct {
	redis.UniversalClient
	Pacer *Pacer
	Slots *Slots
	cfg   ClientConfig

	Serving context.Context //nolint:containedctx // over when its server is shut down, or all are
	Retire  context.CancelFunc

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
	// TryFor is how long one call to Redis may take that is tried again.
	TryFor = 5 * time.Second
	// TryPause is how long after the first failure that is, and twice as long each time.
	TryPause = 100 * time.Millisecond
	// TryMaxPause is the longest pause.
	TryMaxPause = 2 * time.Second

	// endLimit is how long a task's end is kept for a Redis that is away. asynq's
	// recoverer has it when Redis is back, if this process has not.
	endLimit = 10 * time.Minute
	// lastTry is how long a stopping server still tries.
	lastTry = 5 * time.Second
	// mostEnds is for how many tasks the client keeps what is to be done at their end. asynq
	// leaves the end of a task whose lease it lost to its recoverer, so some stay; beyond
	// the bound all are forgotten, and their marks expire.
	mostEnds = 10_000
)

// ClientConfig is what a client needs of its process.
type ClientConfig struct {
	Redis   redis.UniversalClient
	Serving context.Context //nolint:containedctx // over when no server of the process serves
	Mover   *Mover
	Log     *slog.Logger
	// Interval is how often the server looks for tasks while it is idle, and concurrency how many it runs.
	Interval    time.Duration
	Concurrency int
	// GiveBack puts tasks into pending that were taken and are not handed out.
	GiveBack func([]*Handout)
	// Looks is called before each look for tasks.
	Looks func()
	// Forwarded is called when asynq has moved n tasks that are due into a queue.
	Forwarded func(queue string, n int)
	// Moves is what a server that ends waits for.
	Moves *sync.WaitGroup
}

// NewClient returns the client of a server, with its pacer and its slots.
func NewClient(cfg ClientConfig) *Client {
	g := &Client{
		UniversalClient: cfg.Redis, Pacer: NewPacer(cfg.Interval), Slots: NewSlots(cfg.Concurrency), cfg: cfg,
		stopping: make(chan struct{}), untaken: untaken{log: cfg.Log}, ends: combiner{rdb: cfg.Redis},
	}
	g.Serving, g.Retire = context.WithCancel(cfg.Serving)
	g.Pacer.giveBack, g.Pacer.free, g.Pacer.pends = cfg.GiveBack, g.Slots.Free, g.pends
	return g
}

// pends says whether a queue may have a task to be taken: a Redis that does not answer is asked for one, which brings
// the error.
func (g *Client) pends(ctx context.Context, queue string) bool {
	var pending *redis.IntCmd
	err := redisread.FromMaster(ctx, g.UniversalClient, func(pipe redis.Pipeliner) error {
		pending = pipe.Exists(ctx, queue+"pending")
		return nil
	})
	return err != nil || pending.Val() > 0
}

// Stop has what is still to be sent sent within lastTry.
func (g *Client) Stop() { g.once.Do(func() { close(g.stopping) }) }

// EvalSha sends a script: again if it ends a task's run, and when it is time if it
// looks for a task.
func (g *Client) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
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
func (g *Client) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
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

func (g *Client) send(ctx context.Context, keys []string, args []any, its script) *redis.Cmd {
	if queue, ok := Dequeues(ctx, keys); ok && len(args) > 0 {
		return g.look(ctx, queue, func(ctx context.Context, n int) []found { return g.askFor(ctx, queue, n, args, its) })
	}
	if !EndsRun(ctx, keys) {
		if queue, ok := forwards(keys); ok {
			return g.forward(ctx, queue, keys, args, its)
		}
		return its(ctx, g.UniversalClient, args)
	}
	return g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		return g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its(ctx, rdb, args) })
	})
}

// fenced returns what goes before a script that ends a run, if the run can be told from others.
func (g *Client) fenced(ctx context.Context, keys []string) (by fence, is bool) {
	if !EndsRun(ctx, keys) {
		return fence{}, false
	}
	its, lease := g.fences.of(ctx, keys)
	return fence{its, lease}, its != nil
}

// end has a run's end sent until Redis answers, and does what was to be done then.
func (g *Client) end(ctx context.Context, keys []string, try func(context.Context) *redis.Cmd) *redis.Cmd {
	cmd := g.untilTaken(ctx, try)
	g.ended(keys, cmd.Err())
	if lease, _ := ctx.Deadline(); isGone(cmd.Err()) && time.Now().Before(lease) {
		// Nobody else ends a run before its lease is over: a call before did, whose reply was lost.
		return redis.NewCmdResult("OK", nil)
	}
	return cmd
}

// untilTaken sends a script that ends a run until Redis answers.
func (g *Client) untilTaken(ctx context.Context, try func(context.Context) *redis.Cmd) *redis.Cmd {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	var waits untakenTask
	for pause := TryPause; ; pause = min(2*pause, TryMaxPause) {
		bounded, done := context.WithTimeout(ctx, TryFor)
		cmd := try(bounded)
		done()
		if !MayPass(cmd.Err()) || ctx.Err() != nil {
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
func (g *Client) look(ctx context.Context, queue string, ask ask) *redis.Cmd {
	g.cfg.Looks()
	if !g.Slots.admit(g.Pacer.stopped) {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	got := g.Pacer.look(ctx, queue, ask)
	if message, err := got.answer.Text(); err == nil {
		key := queue + "t:" + messageID(message)
		g.fences.takes(key, got.lease)
		g.Slots.comes(key)
	}
	return got.answer
}

// clientKey finds the client of a task's server in the task's context.
type clientKey struct{}

// ClientOf returns nil where the server was not made by NewServer.
func ClientOf(ctx context.Context) *Client {
	g, _ := ctx.Value(clientKey{}).(*Client)
	return g
}

// Handler is a handler whose tasks know the client.
func (g *Client) Handler(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return next.ProcessTask(context.WithValue(ctx, clientKey{}, g), task)
	})
}

// TakeSlot gives a task a slot of its server; nil where nobody counts them.
func (g *Client) TakeSlot(ctx context.Context) *Slot {
	if g == nil {
		return nil
	}
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	return g.Slots.take(taskKey(name, id))
}

// OnEnd has do called when Redis has taken what became of a task, and not if this process
// dies before.
func (g *Client) OnEnd(queue, id string, do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.onEnds == nil || len(g.onEnds) >= mostEnds {
		g.onEnds = map[string]func(){}
	}
	g.onEnds[taskKey(queue, id)] = do
}

// ended does what was to be done when a run's end is noted: now, or by a call before whose
// reply was lost.
func (g *Client) ended(keys []string, err error) {
	for _, key := range keys {
		g.Slots.ended(key)
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
func (g *Client) rest(ctx context.Context, pause time.Duration, cancel context.CancelFunc) bool {
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
			last := time.AfterFunc(lastTry, cancel)
			defer last.Stop()
			stopping = nil
		}
	}
}

// EndsRun tells the scripts by which asynq ends a run from all others: they go
// out under the deadline of the task's lease, and name the active list.
func EndsRun(ctx context.Context, keys []string) bool {
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

// isGone tells the answer of a script that ends a run to one that has ended.
func isGone(err error) bool { return redis.HasErrorPrefix(err, "NOT FOUND") }

// MayPass tells faults that end by themselves from answers.
func MayPass(err error) bool {
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
