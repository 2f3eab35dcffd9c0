package asynqx

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// Client is the Redis client under a server. asynq reports the end of a task in one script. If that fails, asynq tries again with a
// context that has already ended (asynq v0.25 and v0.26). The task then counts as failed when its lease ends, though it was only
// limited, or had succeeded. The client sends such a script until Redis answers. To send one twice is harmless: see runs.
//
// For a limited task on its last attempt it sends put_back instead of asynq's archive: see PutBack. It removes Headway's text from the
// message of a task that has succeeded: see withoutOurText. OnEnd has something done when Redis has recorded the end of a run.
//
// It also holds back the polls of a server that is idle or whose slots are taken.
type Client struct {
	redis.UniversalClient
	Pacer *Pacer
	Slots *Slots
	cfg   ClientConfig

	Serving context.Context //nolint:containedctx // ended when its server is shut down, or all are
	Retire  context.CancelFunc

	life context.Context //nolint:containedctx // over when ends are no longer sent
	die  context.CancelFunc

	repeats  ratelog.Repeats // of log lines
	beats    beats
	combiner combiner
	runs     runs
}

const (
	// TryFor is how long one call to Redis that is retried may take.
	TryFor = 5 * time.Second
	// TryPause is the pause after the first failure. It doubles with each further one, up to TryMaxPause.
	TryPause = 100 * time.Millisecond
	// TryMaxPause is the longest pause.
	TryMaxPause = 2 * time.Second

	// endLimit is how long the end of a task is kept while Redis is away. If this process has not sent
	// it by then, asynq's recoverer handles the task when Redis is back.
	endLimit = 10 * time.Minute
	// lastTry is how long a stopping server goes on trying.
	lastTry = 5 * time.Second
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
	c := &Client{
		UniversalClient: cfg.Redis, Pacer: NewPacer(cfg.Interval), Slots: NewSlots(cfg.Concurrency), cfg: cfg,
		combiner: combiner{rdb: cfg.Redis}, runs: runs{all: map[string]*run{}, scripts: map[string]*redis.Script{}},
	}
	c.Serving, c.Retire = context.WithCancel(cfg.Serving)
	c.life, c.die = context.WithCancel(context.WithoutCancel(cfg.Serving))
	c.Pacer.giveBack, c.Pacer.free, c.Pacer.pends = cfg.GiveBack, c.Slots.Free, c.pends
	return c
}

// pends reports whether a queue may have a pending task. It is true if Redis does not answer: the poll
// that follows returns the error.
func (c *Client) pends(ctx context.Context, queue string) bool {
	pending, err := redisread.One(ctx, c.UniversalClient, func(p redis.Pipeliner) *redis.IntCmd { return p.Exists(ctx, queue+"pending") })
	return err != nil || pending.Val() > 0
}

// Stop limits what is still to be sent to lastTry.
func (c *Client) Stop() { time.AfterFunc(lastTry, c.die) }

// EvalSha sends a script of asynq's, or what takes its place; see send.
func (c *Client) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if isServerState(keys, args) {
		return redis.NewCmdResult(nil, noScript)
	}
	return c.send(ctx, script{hash: sha, keys: keys, args: args})
}

// Eval is EvalSha for a script that Redis did not know.
func (c *Client) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	if isServerState(keys, args) {
		return c.sendState(ctx, source, keys, c.configured(args))
	}
	return c.send(ctx, script{hash: redis.NewScript(source).Hash(), source: source, keys: keys, args: args})
}

// script is a call of a script of asynq's.
type script struct {
	hash, source string // source is empty if asynq sends the hash alone
	keys         []string
	args         []any
}

func (s script) run(ctx context.Context, rdb redis.Scripter) *redis.Cmd {
	if s.source == "" {
		return rdb.EvalSha(ctx, s.hash, s.keys, s.args...)
	}
	return rdb.Eval(ctx, s.source, s.keys, s.args...)
}

// send sends a script of asynq's. One that ends a task's run is sent until Redis answers, one that polls for a task
// waits until it is time to, and one that moves due tasks into pending is left out if none is due.
func (c *Client) send(ctx context.Context, s script) *redis.Cmd {
	if queue, is := Dequeues(ctx, s.keys); is {
		return c.look(ctx, queue)
	}
	if forwards(s.keys) && len(s.args) > 0 && !c.due(ctx, s.keys[0], s.args[0]) {
		return redis.NewCmdResult(int64(0), nil)
	}
	if EndsRun(ctx, s.keys) {
		return c.sendEnd(ctx, s)
	}
	return s.run(ctx, c.UniversalClient)
}

// forwards reports whether keys belong to the script by which asynq moves due tasks into pending. It finds none in two
// commands, and due in one: asynq checks two sets of each queue twice a second.
func forwards(keys []string) bool {
	return len(keys) == 2 && (strings.HasSuffix(keys[0], "}:scheduled") || strings.HasSuffix(keys[0], "}:retry")) && strings.HasSuffix(keys[1], "}:pending")
}

// due reports whether a sorted set may have a task that is due at now, in seconds since 1970. It is
// true if Redis does not answer: the script returns the error.
func (c *Client) due(ctx context.Context, set string, now any) bool {
	seconds, known := now.(int64)
	if !known {
		return true
	}
	due, err := redisread.One(ctx, c.UniversalClient, func(p redis.Pipeliner) *redis.StringSliceCmd {
		return p.ZRangeByScore(ctx, set, &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(seconds, 10), Count: 1})
	})
	return err != nil || len(due.Val()) > 0
}

// look finds a task of queue, when there is a slot for one and it is time to: one that was taken, or one from pending.
func (c *Client) look(ctx context.Context, queue string) *redis.Cmd {
	c.cfg.Looks()
	if !c.Slots.admit(c.Pacer.stopped) {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	got := c.Pacer.look(ctx, queue, func(_ context.Context, n int) []found { return c.takePending(queue, n) })
	if message, err := got.answer.Text(); err == nil {
		key := queue + "t:" + messageID(message)
		c.runs.begin(key, got.lease)
		c.Slots.comes(key)
	}
	return got.answer
}

// takePending takes up to n tasks of a queue from pending. The call is sent again until Redis answers: under the same lease it
// returns what an earlier copy has taken. After half the lease it gives up, and asynq recovers what was taken.
func (c *Client) takePending(queue string, n int) []found {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Serving), LeaseFor/2)
	defer cancel()
	lease, keys := NewLease(), []string{queue, queue + "moving"}
	for pause := TryPause; ; pause = min(2*pause, TryMaxPause) {
		messages, err := eval(ctx, c.UniversalClient, lua.TakePending, keys, []any{lease, n}).StringSlice()
		if MayPass(err) && Sleep(ctx, pause) && c.Serving.Err() == nil {
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

// ClientOf returns the client of a task's server. ctx is what Handler's handler was given.
func ClientOf(ctx context.Context) *Client {
	c, _ := ctx.Value(clientKey{}).(*Client)
	return c
}

// Handler returns a handler that puts the client into the contexts of its tasks.
func (c *Client) Handler(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return next.ProcessTask(context.WithValue(ctx, clientKey{}, c), task)
	})
}

// TakeSlot gives a task a slot of its server.
func (c *Client) TakeSlot(ctx context.Context) *Slot {
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	return c.Slots.take(taskKey(name, id))
}

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
