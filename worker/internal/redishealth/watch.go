// Package redishealth checks whether the Redis of a process answers, logs each change once, and keeps logs quiet during an outage, when
// each task would log the same line.
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
	// settleTime is how long after an outage calls from it may still fail: a little longer than go-redis waits for a reply.
	settleTime = 5 * time.Second
)

// Watch checks whether Redis answers. It logs each change once. As a hook of the worker's client it sees failed calls, so that it
// detects an outage before the next ping. It is safe for concurrent use.
type Watch struct {
	cfg     Config
	pinging chan struct{} // holds a token while a ping is under way
	suspect chan struct{} // holds a token when a call contradicts the last ping
	down    atomic.Bool   // the last ping failed
	workers atomic.Int64  // live ones on this Redis; -1 while unknown

	mu      sync.Mutex
	sent    time.Time // when the last ping was sent
	asked   time.Time // when it returned
	failing time.Time // when the first call failed since Redis last answered; zero for none
	latest  time.Time // when the latest call failed
	calls   int       // that failed since then
	since   time.Time // when err last changed
	outage  bool      // there was an outage
	err     error     // of the last ping, explained; nil when Redis answers
}

// Config configures a Watch. All fields but Explain are required.
type Config struct {
	// Ping pings Redis; its error says why Redis is unusable. See the function Ping.
	Ping func(context.Context) error
	// Explain translates an error of Ping. Nil means the error itself.
	Explain func(error) error
	Count   func() (int, error) // how many asynq servers are live
	Up      func(bool)          // called after each change with whether Redis answers, and for the first answer
	Logger  *slog.Logger        // receives a line when Redis stops and starts answering
}

// New returns a Watch. It does no I/O: see Run.
func New(cfg Config) *Watch {
	w := &Watch{cfg: cfg, pinging: make(chan struct{}, 1), suspect: make(chan struct{}, 1)}
	w.workers.Store(-1)
	return w
}

// Ping returns a ping of a client for a Config: its error says that Redis does not answer or accepts no writes. It costs two round
// trips and writes nothing.
func Ping(rdb redis.UniversalClient) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := rdb.Ping(ctx).Err(); err != nil {
			return err
		}
		// XX requires a key, which never exists. The command fails on a read-only replica, and a server that is full or cannot save.
		err := rdb.SetArgs(ctx, "hw:probe", "", redis.SetArgs{Mode: "XX"}).Err()
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
			return nil // a user without permission to SET may still run the scripts
		}
		return err
	}
}

// Run pings every two seconds until ctx ends, and at once when a call fails.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for counted := (time.Time{}); ; {
		if w.Check(ctx, 0) == nil && time.Since(counted) >= countEvery {
			w.countWorkers()
			counted = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.suspect:
		}
	}
}

// Check returns why Redis does not answer, or nil if it does. An answer at most maxAge old is reused; otherwise Check pings.
func (w *Watch) Check(ctx context.Context, maxAge time.Duration) error {
	if err, known := w.last(maxAge); known {
		return err
	}
	w.pinging <- struct{}{} // one ping at a time; it is bounded
	defer func() { <-w.pinging }()
	if err, known := w.last(maxAge); known {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	began := time.Now()
	err := w.cfg.Ping(context.WithValue(bounded, pingKey{}, true))
	if ctx.Err() == nil { // else the caller stopped, which says nothing about Redis
		w.answered(began, err)
	}
	err, _ = w.last(0)
	return err
}

var errSettling = errors.New("redis is available again, but calls of the outage may still fail")

// Outage returns why calls presently fail: the error of Check, or that an outage has only just ended; nil if nothing is wrong.
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

// last returns the result of the last ping, and whether it is younger than maxAge and no call has failed since.
func (w *Watch) last(maxAge time.Duration) (err error, young bool) { //nolint:revive // an answer, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	doubted := w.err == nil && w.latest.After(w.sent)
	return w.err, !w.asked.IsZero() && !doubted && time.Since(w.asked) < maxAge
}

// answered records the result of a ping that was sent at began.
func (w *Watch) answered(began time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, wasUp, now := w.asked.IsZero(), w.err == nil, time.Now()
	w.sent, w.asked, w.err = began, now, err
	if err != nil && w.cfg.Explain != nil {
		w.err = w.cfg.Explain(err)
	}
	if first || wasUp != (err == nil) {
		w.changed(first, now)
	}
	w.down.Store(err != nil)
	if err == nil {
		w.failing, w.calls = time.Time{}, 0
	}
}

// changed logs that Redis answers, or that it does not. w.mu is held.
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
	w.cfg.Up(w.err == nil)
	switch {
	case w.err != nil:
		w.cfg.Logger.Error("redis unavailable; tasks wait", "error", w.err)
	case !first:
		w.cfg.Logger.Info("redis available again", "down_seconds", float64(now.Sub(since).Milliseconds())/1000, "failed_calls", w.calls)
	}
}

// countWorkers asks how many workers there are.
func (w *Watch) countWorkers() {
	n, err := w.cfg.Count()
	if err != nil {
		n = -1
	}
	w.workers.Store(int64(n))
}

// Workers returns how many asynq servers are live on this Redis, -1 while that is unknown.
func (w *Watch) Workers() int { return int(w.workers.Load()) }

// pingKey marks the watch's own calls in their contexts.
type pingKey struct{}

// called records how a call ended.
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

// failed counts a failed call, and reports whether it is the first since Redis last answered.
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

// isOutage reports whether a call failed because Redis is away, and not by an answer of Redis, or because its caller has gone.
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

// ProcessHook implements redis.Hook: a failed call means that Redis may be away.
func (w *Watch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		w.called(ctx, err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook, like ProcessHook.
func (w *Watch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		w.called(ctx, err)
		return err
	}
}
