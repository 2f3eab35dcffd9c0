package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	watchEvery  = 2 * time.Second
	pingTimeout = time.Second
	countEvery  = 10 * time.Second
)

// watch knows whether Redis answers. It says so once for each change, counts
// outages, and answers /healthz.
type watch struct {
	ping    func(context.Context) error
	explain func(error) error // what a failure of ping means
	count   func() (int, error)
	up      func(bool) // told after each change, the first answer included
	log     *slog.Logger

	asking chan struct{} // holds one token while a ping is on its way

	mu      sync.Mutex
	asked   time.Time // when ping last returned
	since   time.Time // when err last changed
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
	err := w.ping(pinging)
	if ctx.Err() == nil { // else told to stop, which says nothing about Redis
		w.answered(err)
	}
	err, _ = w.last(0)
	return err
}

// last returns what the last ping said, and whether it is younger than maxAge.
func (w *watch) last(maxAge time.Duration) (err error, young bool) { //nolint:revive // an answer, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err, !w.asked.IsZero() && time.Since(w.asked) < maxAge
}

func (w *watch) answered(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, wasUp, now := w.asked.IsZero(), w.err == nil, time.Now()
	w.asked, w.err = now, nil
	if err != nil {
		w.err = w.explain(err)
	}
	if !first && wasUp == (err == nil) {
		return
	}
	down := now.Sub(w.since)
	w.since = now
	w.up(err == nil)
	switch {
	case err != nil:
		w.log.Error("redis does not answer; tasks wait until it does", "error", w.err)
	case !first:
		w.log.Info("redis answers again", "down_seconds", down.Round(time.Millisecond).Seconds())
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
