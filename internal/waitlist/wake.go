package waitlist

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// Processes wake each other by one channel of Redis Pub/Sub when tasks begin to wait for a provider, or when units that tasks
// wait for are free again. A message is the id of its sender, a space and the provider. Messages can be lost, so each process
// also reads now and then which providers are active.

const (
	// wakeEach is how often a process wakes the others for a provider at most.
	wakeEach = 100 * time.Millisecond
	// activeFor is how long a provider counts as active after its last announcement, and activeEach how often a process announces it.
	activeFor  = 24 * time.Hour
	activeEach = 10 * time.Second
)

// wakes is what a process has published, and its listeners.
type wakes struct {
	mu        sync.Mutex
	listeners map[*func(string)]struct{}
	sent      map[string]bool      // providers that were published within wakeEach, and whether to publish them again after that
	active    map[string]time.Time // when a provider was announced last
}

func (l *List) channel() string   { return l.cfg.Base + ":wake" }
func (l *List) activeKey() string { return l.cfg.Base + ":active" }

// OnWake calls f with a provider when a process, this one or another, says that its tasks wait or that units are free for them. f
// is called in one of several goroutines, must be quick and must not call end. Messages of other processes need one connection
// for each OnWake, which is made in the background and renewed after errors; messages in between are lost. end ends the calls.
func (l *List) OnWake(f func(provider string)) (end func()) {
	l.wakes.mu.Lock()
	l.wakes.listeners[&f] = struct{}{}
	l.wakes.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.listen(ctx, f)
	}()
	return func() {
		l.wakes.mu.Lock()
		delete(l.wakes.listeners, &f)
		l.wakes.mu.Unlock()
		cancel()
		<-done
	}
}

// listen passes messages of other processes on until ctx ends.
func (l *List) listen(ctx context.Context, f func(provider string)) {
	sub := l.cfg.Redis.Subscribe(ctx, l.channel())
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer stop()
	for m := range sub.Channel() {
		if id, provider, _ := strings.Cut(m.Payload, " "); id != l.cfg.ID {
			f(provider)
		}
	}
}

// Wake wakes the processes that dispatch, because units that tasks of a provider wait for are free again. It calls this process's
// listeners, and publishes in the background, at most ten times a second for each provider. It ignores errors: each process polls
// as well.
func (l *List) Wake(provider string) {
	l.callListeners(provider)
	l.wakes.mu.Lock()
	defer l.wakes.mu.Unlock()
	l.publishSoon(provider)
}

func (l *List) callListeners(provider string) {
	l.wakes.mu.Lock()
	var calls []func(string)
	for f := range l.wakes.listeners {
		calls = append(calls, *f)
	}
	l.wakes.mu.Unlock()
	for _, f := range calls {
		f(provider)
	}
}

// publishSoon publishes a provider now, or at the end of wakeEach. wakes.mu is held.
func (l *List) publishSoon(provider string) {
	w := &l.wakes
	if _, lately := w.sent[provider]; lately {
		w.sent[provider] = true
		return
	}
	w.sent[provider] = false
	go func() { _ = l.publish(context.Background(), provider, true) }()
	time.AfterFunc(wakeEach, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		again := w.sent[provider]
		delete(w.sent, provider)
		if again {
			l.publishSoon(provider)
		}
	})
}

// noteActive announces in the background that tasks wait for a provider.
func (l *List) noteActive(provider string) {
	if l.wakes.isDue(provider) {
		go func() { _ = l.publish(context.Background(), provider, false) }()
	}
}

// isDue reports whether to announce a provider.
func (w *wakes) isDue(provider string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.active[provider]) >= activeEach
}

// publish announces a provider as active if that is due, and wakes the other processes. The error is that of the announcement
// alone: messages may be lost anyway.
func (l *List) publish(ctx context.Context, provider string, wake bool) error {
	due, now := l.wakes.isDue(provider), time.Now()
	var added *redis.IntCmd
	err := wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) error {
		_, err := l.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			if due {
				added = pipe.ZAdd(ctx, l.activeKey(), redis.Z{Score: float64(now.UnixMicro()), Member: provider})
				pipe.ZRemRangeByScore(ctx, l.activeKey(), "-inf", strconv.FormatInt(now.Add(-activeFor).UnixMicro(), 10))
				pipe.PExpire(ctx, l.activeKey(), activeFor)
			}
			if wake {
				pipe.Publish(ctx, l.channel(), l.cfg.ID+" "+provider)
			}
			return nil
		})
		return err
	})
	if !due {
		return nil
	}
	if added.Err() != nil {
		return wire.Unavailable(ctx, "announce waiting tasks of", provider, err)
	}
	l.wakes.mu.Lock()
	defer l.wakes.mu.Unlock()
	l.wakes.active[provider] = now
	return nil
}

// ActiveProviders returns the providers for which tasks have begun to wait, or have waited while a process dispatched them,
// within the last day and since the given time, each with the time of its last announcement, by the clock of the process that
// made it. A process announces each provider every ten seconds at most. It costs one round trip.
func (l *List) ActiveProviders(ctx context.Context, since time.Time) (map[string]time.Time, error) {
	if day := time.Now().Add(-activeFor); since.Before(day) {
		since = day
	}
	var list *redis.ZSliceCmd
	err := l.Read(ctx, "all providers", func(pipe redis.Pipeliner) {
		list = pipe.ZRangeByScoreWithScores(ctx, l.activeKey(), &redis.ZRangeBy{Min: strconv.FormatInt(since.UnixMicro(), 10), Max: "+inf"})
	})
	if err != nil {
		return nil, err
	}
	active := make(map[string]time.Time, len(list.Val()))
	for _, z := range list.Val() {
		provider, _ := z.Member.(string)
		active[provider] = time.UnixMicro(int64(z.Score))
	}
	return active, nil
}
