package main

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

// watch knows whether Redis answers. It says so once for each change, counts
// outages, and answers /healthz. As a hook of the client that the worker uses it knows of
// calls that failed, so that an outage does not have to wait for the next ping.
type watch struct {
	ping    func(context.Context) error
	explain func(error) error // what a failure of ping means
	count   func() (int, error)
	up      func(bool) // told after each change, the first answer included
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

func newWatch(ping func(context.Context) error, log *slog.Logger) *watch {
	return &watch{
		ping:    ping,
		explain: func(err error) error { return err },
		count:   func() (int, error) { return -1, nil },
		up:      func(bool) {},
		log:     log,
		asking:  make(chan struct{}, 1),
		suspect: make(chan struct{}, 1),
		workers: -1,
	}
}

// run asks until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.check(ctx, 0) == nil {
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

// check returns why Redis does not answer, or nil when it does. An answer that
// is at most maxAge old is good enough; else it asks, for pingTimeout at most.
func (w *watch) check(ctx context.Context, maxAge time.Duration) error {
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

var errSettling = errors.New("redis answers again, and calls of the outage may still fail")

// outages returns why calls fail at the moment, as far as that is known, nil where nothing
// is wrong: check's error, or that an outage was over only just now.
func (w *watch) outages(ctx context.Context, maxAge time.Duration) error {
	if err := w.check(ctx, maxAge); err != nil {
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
func (w *watch) last(maxAge time.Duration) (err error, young bool) { //nolint:revive // an answer, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	doubted := w.err == nil && w.latest.After(w.sent)
	return w.err, !w.asked.IsZero() && !doubted && time.Since(w.asked) < maxAge
}

// answered notes what a ping said that was sent at began.
func (w *watch) answered(began time.Time, err error) {
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
func (w *watch) changed(first bool, now time.Time) {
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
		w.log.Error("redis does not answer; tasks wait until it does", "error", w.err)
	case !first:
		w.log.Info("redis answers again", "down_seconds", float64(now.Sub(since).Milliseconds())/1000, "failed_calls", w.calls)
	}
}

// countWorkers asks how many workers there are, now and then.
func (w *watch) countWorkers() {
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

func (w *watch) liveWorkers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers
}

// pingKey marks the watch's own calls in their contexts.
type pingKey struct{}

// called notes how a call ended.
func (w *watch) called(ctx context.Context, err error) {
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
func (w *watch) failed() (first bool) {
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

// DialHook, ProcessHook and ProcessPipelineHook implement redis.Hook.
func (w *watch) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *watch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		w.called(ctx, err)
		return err
	}
}

func (w *watch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		w.called(ctx, err)
		return err
	}
}
