package asynqx

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
)

// Client is the Redis client under a server. asynq reports the end of a task to Redis in one script,
// and if that fails it tries again with a context that has already ended (asynq v0.25 and v0.26). The
// task then stays active until its lease ends and counts as failed, though it was only limited, or had
// succeeded. The client sends such a script until Redis answers.
//
// To send one twice is harmless: the task is no longer in the active list, or was taken anew, and the
// script changes nothing: see fences.
//
// From the message of a task that has succeeded, the client removes the text that Headway's own
// put-backs left there: see withoutOurText.
//
// State that must last until asynq has recorded the end of a run, such as the mark of a last attempt,
// is removed then: see onEnd.
//
// The client also holds back the polls of an idle server at the pacer, and those of a server whose
// slots are taken, and calls Looks before each.
type Client struct {
	redis.UniversalClient
	Pacer *Pacer
	Slots *Slots
	cfg   ClientConfig

	Serving context.Context //nolint:containedctx // ended when its server is shut down, or all are
	Retire  context.CancelFunc

	stopping chan struct{}
	once     sync.Once
	untaken  untaken
	beats    beats
	ends     combiner
	fences   fences
	state    atomic.Pointer[string] // the script by which a heartbeat writes its server's state; nil: not known yet

	mu     sync.Mutex
	onEnds map[string]func() // by asynq's key of the task
}

const (
	// TryFor is how long one call to Redis that is retried may take.
	TryFor = 5 * time.Second
	// TryPause is the pause after the first failure. It doubles with each further one.
	TryPause = 100 * time.Millisecond
	// TryMaxPause is the longest pause.
	TryMaxPause = 2 * time.Second

	// endLimit is how long the end of a task is kept while Redis is away. If this process has not sent
	// it by then, asynq's recoverer handles the task when Redis is back.
	endLimit = 10 * time.Minute
	// lastTry is how long a stopping server goes on trying.
	lastTry = 5 * time.Second
	// mostEnds is for how many tasks the client keeps what to do at their end. asynq leaves the end of
	// a task whose lease it lost to its recoverer, so some entries stay; beyond the bound all are
	// dropped, and their marks expire.
	mostEnds = 10_000
)

// ClientConfig is what a client needs from its process.
type ClientConfig struct {
	Redis   redis.UniversalClient
	Serving context.Context //nolint:containedctx // over when no server of the process serves
	Log     *slog.Logger
	// Interval is how often an idle server polls for tasks, and Concurrency how many it runs at once.
	Interval    time.Duration
	Concurrency int
	// GiveBack puts tasks into pending that were taken and are not handed out.
	GiveBack func([]*Handout)
	// Looks is called before each poll for tasks.
	Looks func()
	// Moves is a group for which a server waits when it ends.
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

// pends reports whether a queue may have a pending task. It is true if Redis does not answer: the poll
// that follows returns the error.
func (g *Client) pends(ctx context.Context, queue string) bool {
	var pending *redis.IntCmd
	err := redisread.FromMaster(ctx, g.UniversalClient, func(pipe redis.Pipeliner) error {
		pending = pipe.Exists(ctx, queue+"pending")
		return nil
	})
	return err != nil || pending.Val() > 0
}

// Stop limits what is still to be sent to lastTry.
func (g *Client) Stop() { g.once.Do(func() { close(g.stopping) }) }

// EvalSha sends a script. A script that ends a task's run is sent until Redis answers; one that polls
// for a task is sent when it is time.
func (g *Client) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	args = withoutOurText(keys, args)
	if isServerState(keys) && len(args) > 0 { // else the server ends
		return g.sendState(ctx, sha, keys, g.configured(args))
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.EvalSha(ctx, sha, keys, args...)
	}
	if by, is := g.fenced(ctx, keys); is {
		if by.back > 0 && archives(keys) {
			return g.putBack(ctx, keys, args, by)
		}
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
		args = g.configured(args)
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.Eval(ctx, script, keys, args...)
	}
	if by, is := g.fenced(ctx, keys); is {
		return g.endFenced(ctx, keys, args, by, g.fences.learn(script), bare)
	}
	return g.send(ctx, keys, args, bare)
}

// script sends a script of asynq's with arguments, by a client or in a pipeline.
type script func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd

func (g *Client) send(ctx context.Context, keys []string, args []any, its script) *redis.Cmd {
	if queue, ok := Dequeues(ctx, keys); ok && len(args) > 0 {
		return g.look(ctx, queue, func(ctx context.Context, n int) []found { return g.askFor(ctx, queue, n, args, its) })
	}
	if !EndsRun(ctx, keys) {
		if forwards(keys) {
			return g.forward(ctx, keys, args, its)
		}
		return its(ctx, g.UniversalClient, args)
	}
	return g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
		return g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return its(ctx, rdb, args) })
	})
}

// PutBack has put_back sent where asynq would archive the task when its run ends now. asynq then brings the task back at a time, and
// not early.
func (g *Client) PutBack(queue, id string, at time.Time) {
	g.fences.limited(taskKey(queue, id), SecondAtOrAfter(at))
}

// archives reports whether a script that ends a run is asynq's archive.
func archives(keys []string) bool { return len(keys) > 3 && strings.HasSuffix(keys[3], "}:archived") }

// putBack sends put_back instead of asynq's archive, whose keys and arguments it is given.
func (g *Client) putBack(ctx context.Context, keys []string, args []any, by fence) *redis.Cmd {
	keys = append(slices.Clone(keys[:3]), strings.TrimSuffix(keys[3], "archived")+"retry")
	source := lua.PutBack.Source()
	return g.endFenced(ctx, keys, []any{args[0], args[1], by.back}, by, g.fences.learn(source), func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.Eval(ctx, source, keys, args...)
	})
}

// fenced returns what precedes a script that ends a run, if the run can be distinguished from others.
func (g *Client) fenced(ctx context.Context, keys []string) (by fence, is bool) {
	if !EndsRun(ctx, keys) {
		return fence{}, false
	}
	its, lease := g.fences.of(ctx, keys)
	return fence{its, lease}, its != nil
}

// end sends a run's end until Redis answers, and then does what was registered for it.
func (g *Client) end(ctx context.Context, keys []string, try func(context.Context) *redis.Cmd) *redis.Cmd {
	cmd := g.untilTaken(ctx, try)
	g.ended(keys, cmd.Err())
	if lease, _ := ctx.Deadline(); isGone(cmd.Err()) && time.Now().Before(lease) {
		// Only this process ends a run before its lease is over: an earlier call did, and its reply
		// was lost.
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

// look finds a task of queue, when there is a slot for one and it is time to: one that was taken, or
// one from ask.
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

// clientKey is the key of a server's client in the context of its tasks.
type clientKey struct{}

// ClientOf returns the client of a task's server, nil if the server was not made by NewServer.
func ClientOf(ctx context.Context) *Client {
	g, _ := ctx.Value(clientKey{}).(*Client)
	return g
}

// Handler returns a handler that puts the client into the contexts of its tasks.
func (g *Client) Handler(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return next.ProcessTask(context.WithValue(ctx, clientKey{}, g), task)
	})
}

// TakeSlot gives a task a slot of its server; nil if slots are not counted.
func (g *Client) TakeSlot(ctx context.Context) *Slot {
	if g == nil {
		return nil
	}
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	return g.Slots.take(taskKey(name, id))
}

// OnEnd registers do to be called when Redis has recorded the end of a task. It is not called if this
// process dies before.
func (g *Client) OnEnd(queue, id string, do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.onEnds == nil || len(g.onEnds) >= mostEnds {
		g.onEnds = map[string]func(){}
	}
	g.onEnds[taskKey(queue, id)] = do
}

// ended does what was registered for a run's end once the end is recorded, by this call or by an
// earlier one whose reply was lost.
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

// EndsRun reports whether a script of asynq's ends a run: only such scripts are sent under the
// deadline of the task's lease and name the active list.
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

// isGone reports whether err is the answer to a script that ends a run that has ended already.
func isGone(err error) bool { return redis.HasErrorPrefix(err, "NOT FOUND") }

// MayPass reports whether err is a fault that may pass by itself, and not an answer.
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
