package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policystore"
)

// Config configures New. The zero Config is ready to use; at least one of OnEvent, Webhook and Logger
// makes it useful.
type Config struct {
	// Thresholds are the percentages of a limit that are reported, 1 to 100, ascending. 100 is reported when
	// a rule admits no more. Defaults to 50, 80 and 100.
	Thresholds []int
	// ShortestWindow is the shortest window of a rule whose thresholds are reported: a limit by the second
	// is exhausted each second. Defaults to a minute.
	ShortestWindow time.Duration
	// OnEvent receives each event, one after the other, in a goroutine of its own. While it blocks, further
	// events wait, 256 at most. Defaults to none.
	OnEvent func(Event)
	// Webhook receives each event by HTTP. Defaults to none.
	Webhook *Webhook
	// Logger gets a line for each event, and for events that the webhook does not accept. Defaults to none;
	// with worker.New, to its logger.
	Logger *slog.Logger
	// App names the process in its events. Defaults to none; with worker.New, to its App.
	App string
	// Prefix begins the keys in Redis, as throttle.Config.Prefix. Defaults to "hw"; worker.New sets it.
	Prefix string
	// Observer counts events and deliveries. Defaults to none; worker.New sets its metrics.
	Observer Observer
}

// Observer counts. Its methods must not block.
type Observer interface {
	// Event counts a reported event, or one that was lost since too many came at once: kind "lost".
	Event(kind string)
	// EventDelivery counts what became of a delivery to the webhook: "delivered", "retried" (another attempt
	// follows), "failed" (none follows) or "dropped" (too many waited).
	EventDelivery(outcome string)
}

const (
	maxNoticed = 256    // events between noticing and reporting
	maxRecent  = 10_000 // events that a process remembers
	askBound   = time.Second
	whole      = 100
)

// Events notices events and reports them. It is a throttle.Observer, and takes what package worker
// observes; worker.New connects it. It is safe for concurrent use.
type Events struct {
	throttle.NoObserver // Upstream gets what answers change
	cfg                 Config
	host                string
	noticed             chan noticed
	webhook             *webhook // nil: none

	mu     sync.Mutex
	recent map[string]time.Time // what was noticed here, and until when it is not again

	quotas   quotas
	dispatch dispatching
}

// noticed is an event that this process has noticed.
type noticed struct {
	event Event
	of    string        // what it is about: an event of the same is not reported for stays
	stays time.Duration // 0: reported in any case
	quiet bool          // only noted, so that it is not reported later
}

// New returns an Events. It does no I/O. The error names each field of cfg that is wrong; it never contains
// the webhook's secret or path.
func New(cfg Config) (*Events, error) {
	e := &Events{cfg: cfg, noticed: make(chan noticed, maxNoticed), recent: map[string]time.Time{}}
	var faults []error
	if len(cfg.Thresholds) == 0 {
		e.cfg.Thresholds = []int{50, 80, whole}
	}
	if list := e.cfg.Thresholds; list[0] < 1 || list[len(list)-1] > whole || !slices.IsSorted(list) {
		faults = append(faults, fmt.Errorf("events: Thresholds are %v; write percentages from 1 to 100, ascending", list))
	}
	if cfg.ShortestWindow < 0 {
		faults = append(faults, fmt.Errorf("events: ShortestWindow is %s; it is 0 or more", cfg.ShortestWindow))
	}
	e.cfg.ShortestWindow = cmp.Or(cfg.ShortestWindow, time.Minute)
	e.cfg.Prefix = cmp.Or(cfg.Prefix, "hw")
	if cfg.Observer == nil {
		e.cfg.Observer = nobody{}
	}
	if cfg.Logger == nil {
		e.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e.host, _ = os.Hostname()
	e.quotas.asks = make(chan string, maxAsks)
	if cfg.Webhook != nil {
		var err error
		if e.webhook, err = newWebhook(*cfg.Webhook, e.cfg); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return e, nil
}

type nobody struct{}

func (nobody) Event(string)         {}
func (nobody) EventDelivery(string) {}

// Run reports events until ctx ends, and then what was noticed by then, for some seconds at most. limiter is
// the one that Events observes. Call it once.
func (e *Events) Run(ctx context.Context, rdb redis.UniversalClient, limiter *throttle.Limiter) {
	var watch, sends sync.WaitGroup
	watch.Go(func() { e.askLeft(ctx, limiter) })
	watch.Go(func() { e.watchDispatch(ctx) })
	watch.Go(func() { e.watchLimits(ctx, policystore.New(rdb, policystore.Config{Prefix: e.cfg.Prefix}), limiter) })
	if e.webhook != nil {
		sends.Go(func() { e.webhook.run(ctx, rdb) })
	}
	for ctx.Err() == nil {
		select {
		case one := <-e.noticed:
			e.report(ctx, rdb, one)
		case <-ctx.Done():
		}
	}
	watch.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), askBound)
	defer cancel()
	for len(e.noticed) > 0 {
		e.report(last, rdb, <-e.noticed)
	}
	if e.webhook != nil {
		e.webhook.close()
	}
	sends.Wait()
}

// notice takes an event to be reported. It does not block.
func (e *Events) notice(one noticed) {
	now := time.Now()
	if one.stays > 0 && !e.first(one, now) {
		return
	}
	one.event.ID, one.event.At, one.event.App, one.event.Host = rand.Text(), now.UTC(), e.cfg.App, e.host
	one.event.Text = one.event.sentence()
	select {
	case e.noticed <- one:
	default:
		e.cfg.Observer.Event("lost")
	}
}

// first reports whether this process has not noticed the same lately.
func (e *Events) first(one noticed, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Before(e.recent[one.of]) {
		return false
	}
	if len(e.recent) >= maxRecent {
		for of, until := range e.recent {
			if !now.Before(until) {
				delete(e.recent, of)
			}
		}
	}
	if len(e.recent) >= maxRecent {
		clear(e.recent) // Redis remembers
	}
	e.recent[one.of] = now.Add(one.stays)
	return true
}

// report delivers an event, unless another process has.
func (e *Events) report(ctx context.Context, rdb redis.UniversalClient, one noticed) {
	if one.stays > 0 && !e.claim(ctx, rdb, one) || one.quiet {
		return
	}
	e.cfg.Observer.Event(string(one.event.Kind))
	e.log(ctx, one.event)
	if e.cfg.OnEvent != nil {
		e.call(ctx, one.event)
	}
	if e.webhook != nil {
		e.webhook.put(one.event)
	}
}

// claim reports whether this process is the one that reports an event. If Redis does not say, it is.
func (e *Events) claim(ctx context.Context, rdb redis.UniversalClient, one noticed) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askBound)
	defer cancel()
	key := e.key(one.of)
	err := rdb.SetArgs(ctx, key, one.event.ID, redis.SetArgs{Mode: "NX", TTL: one.stays}).Err()
	if !errors.Is(err, redis.Nil) {
		return true
	}
	var holder *redis.StringCmd // this process, if go-redis has sent the command twice
	err = redisread.FromMaster(ctx, rdb, func(pipe redis.Pipeliner) error {
		holder = pipe.Get(ctx, key)
		return nil
	})
	return err == nil && holder.Val() == one.event.ID
}

// key names what an event is about. Its name holds no customer's.
func (e *Events) key(of string) string {
	sum := sha256.Sum256([]byte(of))
	return e.cfg.Prefix + ":{!event:" + hex.EncodeToString(sum[:16]) + "}"
}

func (e *Events) log(ctx context.Context, one Event) {
	attrs := []slog.Attr{slog.String("kind", string(one.Kind)), slog.String("text", one.Text), slog.String("event_id", one.ID)}
	if one.Scope != "" {
		attrs = append(attrs, slog.String("scope", one.Scope))
	}
	if one.Rule != "" {
		attrs = append(attrs, slog.String("rule", one.Rule))
	}
	if one.Percent != 0 {
		attrs = append(attrs, slog.Int("percent", one.Percent))
	}
	e.cfg.Logger.LogAttrs(ctx, one.level(), "event", attrs...)
}

// call calls the user's function, which must not end the process.
func (e *Events) call(ctx context.Context, one Event) {
	defer func() {
		if x := recover(); x != nil {
			e.cfg.Logger.ErrorContext(ctx, "Config.OnEvent panicked", "kind", string(one.Kind), "event_id", one.ID, "panic", fmt.Sprint(x))
		}
	}()
	e.cfg.OnEvent(one)
}
