package redishealth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	watchEvery  = 2 * time.Second
	pingTimeout = time.Second
	countEvery  = 10 * time.Second
	// settleTime is how long after an outage calls may still fail that were made in it: as
	// long as go-redis waits for a reply, and a little more.
	settleTime = 5 * time.Second
)

// Watch knows whether Redis answers. It says so once for each change, counts
// outages, and answers /healthz. As a hook of the client that the worker uses it knows of
// calls that failed, so that an outage does not have to wait for the next ping.
type Watch struct {
	ping    func(context.Context) error
	explain func(error) error
	count   func() (int, error)
	up      func(bool)
	log     *slog.Logger

	asking  chan struct{} // holds one token while a ping is on its way
	suspect chan struct{} // holds one when a call says otherwise than the last ping
	down    atomic.Bool   // the last ping failed

	mu      sync.Mutex
	sent    time.Time // when ping was last called
	asked   time.Time // when it returned
	failing time.Time // when the first call failed since Redis last answered; zero for none
	latest  time.Time // when the last one did
	calls   int       // that failed since then
	since   time.Time // when err last changed
	outage  bool      // there was one
	err     error     // of the last ping, explained; nil when Redis answers
	counted time.Time
	workers int // live ones on this Redis; -1 while unknown
}

// Config is how a Watch works. Ping is required.
type Config struct {
	// Ping asks Redis; an error says why it is of no use. See Ping.
	Ping func(context.Context) error
	// Explain says what an error of Ping means. Defaults to the error itself.
	Explain func(error) error
	// Count returns how many servers of asynq are live. Defaults to none, which is unknown.
	Count func() (int, error)
	// Up is called after each change with whether Redis answers, the first answer included. Defaults to none.
	Up func(bool)
	// Logger gets a line when Redis stops and starts answering. Defaults to none.
	Logger *slog.Logger
}

// New returns a Watch. It does no I/O: see Run.
func New(cfg Config) *Watch {
	w := &Watch{
		ping: cfg.Ping, explain: cfg.Explain, count: cfg.Count, up: cfg.Up, log: cfg.Logger,
		asking:  make(chan struct{}, 1),
		suspect: make(chan struct{}, 1),
		workers: -1,
	}
	if w.explain == nil {
		w.explain = func(err error) error { return err }
	}
	if w.count == nil {
		w.count = func() (int, error) { return -1, nil }
	}
	if w.up == nil {
		w.up = func(bool) {}
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	return w
}

// Ping returns a ping of a client for a Config: what Redis says when it does not answer, or takes no writes. It costs two round
// trips and writes nothing.
func Ping(rdb redis.UniversalClient) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := rdb.Ping(ctx).Err(); err != nil {
			return err
		}
		// XX wants a key that never exists. It fails on a read-only replica, a full server and one that cannot save.
		err := rdb.SetArgs(ctx, "hw:probe", "", redis.SetArgs{Mode: "XX"}).Err()
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
			return nil // a user that may not SET may still run the scripts
		}
		return err
	}
}

// Run asks every two seconds until ctx ends, and at once when a call fails.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.Check(ctx, 0) == nil {
			w.countWorkers()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.suspect:
		}
	}
}

// Check returns why Redis does not answer, or nil when it does. An answer that
// is at most maxAge old is good enough; else it asks, for pingTimeout at most.
func (w *Watch) Check(ctx context.Context, maxAge time.Duration) error {
	if err, known := w.last(maxAge); known {
		return err
	}
	w.asking <- struct{}{} // one ping is on its way at a time; it is bounded
	defer func() { <-w.asking }()
	if err, known := w.last(maxAge); known {
		return err
	}
	pinging, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	began := time.Now()
	err := w.ping(context.WithValue(pinging, pingKey{}, true))
	if ctx.Err() == nil { // else told to stop, which says nothing about Redis
		w.answered(began, err)
	}
	err, _ = w.last(0)
	return err
}

var errSettling = errors.New("redis is available again, but calls of the outage may still fail")

// Outage returns why calls fail at the moment, as far as that is known, nil where nothing
// is wrong: Check's error, or that an outage was over only just now.
func (w *Watch) Outage(ctx context.Context, maxAge time.Duration) error {
	if err := w.Check(ctx, maxAge); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outage && time.Since(w.since) < settleTime {
		return errSettling
	}
	return nil
}

// last returns what the last ping said, and whether it is younger than maxAge. An answer
// does not count any more when a call has failed since.
func (w *Watch) last(maxAge time.Duration) (err error, young bool) { //nolint:revive // an answer, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	doubted := w.err == nil && w.latest.After(w.sent)
	return w.err, !w.asked.IsZero() && !doubted && time.Since(w.asked) < maxAge
}

// answered notes what a ping said that was sent at began.
func (w *Watch) answered(began time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, wasUp, now := w.asked.IsZero(), w.err == nil, time.Now()
	w.sent, w.asked, w.err = began, now, nil
	if err != nil {
		w.err = w.explain(err)
	}
	if first || wasUp != (err == nil) {
		w.changed(first, now)
	}
	w.down.Store(err != nil)
	if err == nil {
		w.failing, w.calls = time.Time{}, 0
	}
}

// changed tells that Redis answers, or that it does not. w.mu is held.
func (w *Watch) changed(first bool, now time.Time) {
	since := w.since
	w.since = now
	w.outage = !first || w.err != nil
	if w.err != nil {
		w.since = w.sent
		if !w.failing.IsZero() && w.failing.Before(w.sent) {
			w.since = w.failing
		}
	}
	w.up(w.err == nil)
	switch {
	case w.err != nil:
		w.log.Error("redis unavailable; tasks wait", "error", w.err)
	case !first:
		w.log.Info("redis available again", "down_seconds", float64(now.Sub(since).Milliseconds())/1000, "failed_calls", w.calls)
	}
}

// countWorkers asks how many workers there are, now and then.
func (w *Watch) countWorkers() {
	w.mu.Lock()
	due := w.counted.IsZero() || time.Since(w.counted) >= countEvery
	w.mu.Unlock()
	if !due {
		return
	}
	n, err := w.count() // outside the lock: it takes no context
	if err != nil {
		n = -1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted, w.workers = time.Now(), n
}

// Workers returns how many servers of asynq are live on this Redis, -1 while that is unknown.
func (w *Watch) Workers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers
}

// pingKey marks the watch's own calls in their contexts.
type pingKey struct{}

// called notes how a call ended.
func (w *Watch) called(ctx context.Context, err error) {
	if ctx.Value(pingKey{}) != nil {
		return
	}
	if isOutage(err) && w.failed() || err == nil && w.down.Load() {
		select {
		case w.suspect <- struct{}{}:
		default:
		}
	}
}

// failed counts a call that failed, and tells whether it is the first since Redis last
// answered.
func (w *Watch) failed() (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = time.Now()
	if first = w.failing.IsZero(); first {
		w.failing = w.latest
	}
	w.calls++
	return first
}

// isOutage tells a call that failed since Redis is away from one that Redis answered, or
// that nobody waits for any more.
func isOutage(err error) bool {
	if err == nil || errors.Is(err, redis.Nil) || errors.Is(err, redis.ErrClosed) || errors.Is(err, context.Canceled) {
		return false
	}
	var answer redis.Error
	if !errors.As(err, &answer) {
		return true
	}
	return slices.ContainsFunc([]string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "OOM", "MISCONF", "NOREPLICAS"},
		func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}

// DialHook implements redis.Hook, and does nothing.
func (w *Watch) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook: a call that fails says that Redis may be away.
func (w *Watch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		w.called(ctx, err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook, as ProcessHook.
func (w *Watch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		w.called(ctx, err)
		return err
	}
}
