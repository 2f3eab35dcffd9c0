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
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// Client is the Redis client under a server. asynq reports the end of a task to Redis in one script,
// and if that fails it tries again with a context that has already ended (asynq v0.25 and v0.26). The
// task then stays active until its lease ends and counts as failed, though it was only limited, or had
// succeeded. The client sends such a script until Redis answers. To send one twice is harmless: the task
// is no longer in the active list, or was taken anew, and the script changes nothing: see fences.
//
// Of a limited task on its last attempt, put_back is sent instead of asynq's archive: see PutBack. From
// the message of a task that has succeeded, the client removes the text that Headway's own put-backs
// left there: see withoutOurText. State that must last until asynq has recorded the end of a run, such
// as the mark of a last attempt, is removed then: see OnEnd.
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

	life context.Context //nolint:containedctx // over when ends are no longer sent
	die  context.CancelFunc

	repeats ratelog.Repeats // of log lines
	beats   beats
	ends    combiner
	fences  fences

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
}

// NewClient returns the client of a server, with its pacer and its slots.
func NewClient(cfg ClientConfig) *Client {
	g := &Client{
		UniversalClient: cfg.Redis, Pacer: NewPacer(cfg.Interval), Slots: NewSlots(cfg.Concurrency), cfg: cfg,
		ends:   combiner{rdb: cfg.Redis},
		fences: fences{own: map[string]*pass{}, scripts: map[string]*redis.Script{}}, onEnds: map[string]func(){},
	}
	g.Serving, g.Retire = context.WithCancel(cfg.Serving)
	g.life, g.die = context.WithCancel(context.WithoutCancel(cfg.Serving))
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
func (g *Client) Stop() { time.AfterFunc(lastTry, g.die) }

// EvalSha sends a script. A script that ends a task's run is sent until Redis answers, and one that
// polls for a task is replaced by Headway's when it is time.
func (g *Client) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if isServerState(keys, args) {
		return redis.NewCmdResult(nil, noScript)
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.EvalSha(ctx, sha, keys, args...)
	}
	return g.send(ctx, keys, args, bare, sha, "")
}

// Eval is EvalSha for a script that Redis did not know.
func (g *Client) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	if isServerState(keys, args) {
		return g.sendState(ctx, script, keys, g.configured(args))
	}
	bare := func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd {
		return rdb.Eval(ctx, script, keys, args...)
	}
	return g.send(ctx, keys, args, bare, redis.NewScript(script).Hash(), script)
}

// script sends a script of asynq's with arguments, by a client or in a pipeline.
type script func(ctx context.Context, rdb redis.Scripter, args []any) *redis.Cmd

// send sends a script of asynq's as bare does, or what takes its place. Its source is empty where asynq
// sends the hash alone.
func (g *Client) send(ctx context.Context, keys []string, args []any, bare script, hash, source string) *redis.Cmd {
	if queue, is := Dequeues(ctx, keys); is {
		return g.look(ctx, queue)
	}
	if forwards(keys) {
		return g.forward(ctx, keys, args, bare)
	}
	if !EndsRun(ctx, keys) {
		return bare(ctx, g.UniversalClient, args)
	}
	args = withoutOurText(keys, args)
	run, lease := g.fences.of(keys)
	if run == nil {
		return g.end(ctx, keys, func(ctx context.Context) *redis.Cmd {
			return g.ends.send(func(rdb redis.Scripter) *redis.Cmd { return bare(ctx, rdb, args) })
		})
	}
	script := g.fences.script(hash, source)
	if run.back > 0 && len(keys) > 3 && strings.HasSuffix(keys[3], "}:archived") { // asynq's archive
		keys = append(slices.Clone(keys[:3]), strings.TrimSuffix(keys[3], "archived")+"retry")
		args, script = []any{args[0], args[1], run.back, "retry"}, putBack()
	}
	if script == nil {
		return redis.NewCmdResult(nil, noScript)
	}
	return g.endFenced(ctx, keys, args, run, lease, script)
}

// putBack is put_back, fenced.
var putBack = sync.OnceValue(func() *redis.Script { return redis.NewScript(lua.Fence(lua.PutBack.Source())) })

// PutBack has put_back sent where asynq would archive the task when its run ends now. asynq then brings
// the task back at a time, and not early.
func (g *Client) PutBack(queue, id string, at time.Time) {
	g.fences.limited(taskKey(queue, id), SecondAtOrAfter(at))
}

// end sends a run's end until Redis answers, and then does what was registered for it.
func (g *Client) end(ctx context.Context, keys []string, try func(context.Context) *redis.Cmd) *redis.Cmd {
	cmd := g.untilTaken(try)
	g.ended(keys, cmd.Err())
	if lease, _ := ctx.Deadline(); isGone(cmd.Err()) && time.Now().Before(lease) {
		// Only this process ends a run before its lease is over: an earlier call did, and its reply
		// was lost.
		return redis.NewCmdResult("OK", nil)
	}
	return cmd
}

// untilTaken sends a script that ends a run until Redis answers.
func (g *Client) untilTaken(try func(context.Context) *redis.Cmd) *redis.Cmd {
	ctx, cancel := context.WithTimeout(g.life, endLimit)
	defer cancel()
	for pause := TryPause; ; pause = min(2*pause, TryMaxPause) {
		bounded, done := context.WithTimeout(ctx, TryFor)
		cmd := try(bounded)
		done()
		if !MayPass(cmd.Err()) {
			return cmd
		}
		if !Sleep(ctx, pause) {
			if more, due := g.repeats.Due("given up", time.Now()); due {
				g.cfg.Log.Warn("some task results were not written to redis; asynq recovers these tasks", "more", more, "error", cmd.Err())
			}
			return cmd
		}
		if more, due := g.repeats.Due("retrying", time.Now()); due {
			g.cfg.Log.Warn("cannot write task results to redis; retrying", "more", more, "error", cmd.Err())
		}
	}
}

// look finds a task of queue, when there is a slot for one and it is time to: one that was taken, or
// one from pending.
func (g *Client) look(ctx context.Context, queue string) *redis.Cmd {
	g.cfg.Looks()
	if !g.Slots.admit(g.Pacer.stopped) {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	got := g.Pacer.look(ctx, queue, func(_ context.Context, n int) []found { return g.takePending(queue, n) })
	if message, err := got.answer.Text(); err == nil {
		key := queue + "t:" + messageID(message)
		g.fences.takes(key, got.lease)
		g.Slots.comes(key)
	}
	return got.answer
}

// takePending takes up to n tasks of a queue from pending. The call is sent again until Redis answers:
// under the same lease it returns what an earlier copy has taken. After half the lease it gives up, and
// asynq recovers what was taken.
func (g *Client) takePending(queue string, n int) []found {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.Serving), LeaseFor/2)
	defer cancel()
	lease, keys := NewLease(), []string{queue, queue + "moving"}
	for pause := TryPause; ; pause = min(2*pause, TryMaxPause) {
		messages, err := eval(ctx, g.UniversalClient, lua.TakePending, keys, []any{lease, n}).StringSlice()
		if MayPass(err) && Sleep(ctx, pause) && g.Serving.Err() == nil {
			continue
		}
		if err == nil && len(messages) == 0 {
			err = redis.Nil
		}
		if err != nil {
			return []found{{answer: redis.NewCmdResult(nil, err)}}
		}
		all := make([]found, len(messages))
		for i, message := range messages {
			all[i] = found{lease, redis.NewCmdResult(message, nil)}
		}
		return all
	}
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
	if len(g.onEnds) >= mostEnds {
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
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "max number of clients"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
