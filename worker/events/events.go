// Package events reports what an operator wants to know at once: that a quota is half used, nearly used or exhausted, that an API paused a
// scope or had a limit cut, that a process does not dispatch waiting tasks, and that processes have different limits. Events go to a log,
// to a function and to a webhook.
//
//	e, err := events.New(events.Config{
//		OnEvent: func(e events.Event) { page(e.Text) },
//		Webhook: &events.Webhook{URL: "https://example.com/hooks/headway", Secret: secret},
//	})
//	…
//	limits, err := worker.New(rdb, worker.Config{Events: e})
//
// An event is reported once, however many processes notice it: a key in Redis keeps the others quiet for a while. If Redis does not
// answer, each process reports for itself. Events follow from what decisions, answers and dispatches return. docs/events.md says how late
// each may be.
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

// Config configures New. The zero Config reports to the log alone.
type Config struct {
	// Thresholds are the percentages of a limit that are reported, 1 to 100, ascending. 100 is reported when a rule admits no more.
	// Defaults to 50, 80 and 100.
	Thresholds []int
	// OnEvent receives one event after the other, in a goroutine of its own. While it blocks, 256 events wait at most. Defaults to none.
	OnEvent func(Event)
	// Webhook receives each event by HTTP. Defaults to none.
	Webhook *Webhook
}

// Observer counts what is reported; a *metrics.Metrics is one. Its methods must not block. It is an alias, so that worker.Events can
// have Bind without package worker importing this one.
type Observer = interface {
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
	// cutStays is how long a cut of a rule is not reported again: an API that rejects calls causes one each second.
	cutStays = 10 * time.Minute
)

// Events notices events and reports them. It is a worker.Events. It is safe for concurrent use.
type Events struct {
	throttle.NoObserver
	cfg     Config
	process process
	noticed chan noticed
	webhook *webhook // nil: none

	mu     sync.Mutex
	recent map[string]time.Time // what was noticed here, and until when it is not again

	quotas   quotas
	dispatch dispatching
}

type process struct {
	app, host string
	prefix    string // of all keys
	log       *slog.Logger
	observer  Observer
}

type noticed struct {
	event Event
	about string        // the key under which the same event is not reported again
	stays time.Duration // for how long it is not; 0: it is reported in any case
	quiet bool          // only noted, so that it is not reported later
}

// New returns an Events. It does no I/O. The error names each field that is wrong, and never has the webhook's secret or path.
func New(cfg Config) (*Events, error) {
	e := &Events{cfg: cfg, noticed: make(chan noticed, maxNoticed), recent: map[string]time.Time{}, dispatch: dispatching{polls: map[string]poll{}}}
	var faults []error
	if len(cfg.Thresholds) == 0 {
		e.cfg.Thresholds = []int{50, 80, whole}
	}
	if list := e.cfg.Thresholds; list[0] < 1 || list[len(list)-1] > whole || !slices.IsSorted(list) {
		faults = append(faults, fmt.Errorf("events: Thresholds are %v; write percentages from 1 to 100, ascending", list))
	}
	e.process.host, _ = os.Hostname()
	e.Bind("", "", nil, nil)
	e.quotas.asks = make(chan string, maxAsks)
	if cfg.Webhook != nil {
		var err error
		if e.webhook, err = newWebhook(*cfg.Webhook, &e.process); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return e, nil
}

// Bind sets the process that e reports for: the App in its events, the prefix of all keys in Redis ("hw" if it is empty), and where it
// logs and counts, nil for nowhere. worker.New calls it; a program without workers does before it uses e.
func (e *Events) Bind(app, prefix string, log *slog.Logger, observer Observer) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if observer == nil {
		observer = noObserver{}
	}
	p := &e.process
	p.app, p.prefix, p.log, p.observer = app, cmp.Or(prefix, "hw"), log, observer
}

type noObserver struct{}

func (noObserver) Event(string)         {}
func (noObserver) EventDelivery(string) {}

// Run reports events until ctx ends, and then what was noticed by then, for some seconds at most. limiter is the one that Events
// observes. Call it once.
func (e *Events) Run(ctx context.Context, rdb redis.UniversalClient, limiter *throttle.Limiter) {
	var watch, sends sync.WaitGroup
	watch.Go(func() { e.askLeft(ctx, limiter) })
	watch.Go(func() { e.watchDispatch(ctx) })
	watch.Go(func() {
		e.watchLimits(ctx, policystore.New(rdb, policystore.Config{Prefix: e.process.prefix}), limiter)
	})
	if e.webhook != nil {
		sends.Go(func() { e.webhook.run(ctx, rdb) })
	}
	for ctx.Err() == nil {
		select {
		case n := <-e.noticed:
			e.report(ctx, rdb, n)
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
		close(e.webhook.queue)
	}
	sends.Wait()
}

// Upstream notices pauses, cuts and breakers, as a throttle.Observer.
func (e *Events) Upstream(c throttle.UpstreamChange) {
	event := Event{Scope: c.Scope, Rule: c.Rule, Pattern: c.Pattern, Calls: c.Calls, Failures: c.Failures, Shadow: c.Shadow}
	if !c.Until.IsZero() {
		event.Until = c.Until.UTC()
	}
	switch c.What {
	case "pause":
		event.Kind = Pause
		e.notice(noticed{event: event, about: string(Pause) + "\x00" + c.Scope, stays: min(max(c.Left, leastStay), mostStay)})
	case "cut":
		event.Kind = Cut
		e.notice(noticed{event: event, about: string(Cut) + "\x00" + c.Scope + "\x00" + c.Rule, stays: cutStays})
	case "open", "closed": // each probe that fails opens it again
		event.Kind = Kind(c.What)
		e.notice(noticed{event: event, about: c.What + "\x00" + c.Scope, stays: cutStays})
	}
}

// TierTrouble notices tiers that are not known, as a throttle.Observer.
func (e *Events) TierTrouble(t throttle.TierTrouble) {
	event := Event{Kind: Tier, Scope: t.Name, Tier: cmp.Or(t.Unknown, t.Tier), Unknown: t.Err == nil}
	e.notice(noticed{event: event, about: string(Tier) + "\x00" + t.Unknown, stays: cutStays})
}

// notice takes an event to be reported. It does not block.
func (e *Events) notice(n noticed) {
	now := time.Now()
	if n.stays > 0 && !e.first(n, now) {
		return
	}
	n.event.ID, n.event.At, n.event.App, n.event.Host = rand.Text(), now.UTC(), e.process.app, e.process.host
	n.event.Text = n.event.sentence()
	select {
	case e.noticed <- n:
	default:
		e.process.observer.Event("lost")
	}
}

// first reports whether this process has not noticed the same lately.
func (e *Events) first(n noticed, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Before(e.recent[n.about]) {
		return false
	}
	if len(e.recent) >= maxRecent {
		clear(e.recent) // Redis remembers
	}
	e.recent[n.about] = now.Add(n.stays)
	return true
}

// report delivers an event, unless another process has.
func (e *Events) report(ctx context.Context, rdb redis.UniversalClient, n noticed) {
	if n.stays > 0 && !e.claim(ctx, rdb, n) || n.quiet {
		return
	}
	e.process.observer.Event(string(n.event.Kind))
	e.log(ctx, n.event)
	if e.cfg.OnEvent != nil {
		e.call(ctx, n.event)
	}
	if e.webhook != nil {
		e.webhook.put(n.event)
	}
}

// claim reports whether this process is the one that reports an event. If Redis does not say, it is.
func (e *Events) claim(ctx context.Context, rdb redis.UniversalClient, n noticed) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askBound)
	defer cancel()
	sum := sha256.Sum256([]byte(n.about)) // so that the key has no customer's name
	key := e.process.prefix + ":{!event:" + hex.EncodeToString(sum[:16]) + "}"
	err := rdb.SetArgs(ctx, key, n.event.ID, redis.SetArgs{Mode: "NX", TTL: n.stays}).Err()
	if !errors.Is(err, redis.Nil) {
		return true
	}
	// It is this process if go-redis has sent the command twice.
	holder, err := redisread.One(ctx, rdb, func(p redis.Pipeliner) *redis.StringCmd { return p.Get(ctx, key) })
	return err == nil && holder.Val() == n.event.ID
}

func (e *Events) log(ctx context.Context, event Event) {
	attrs := []slog.Attr{slog.String("kind", string(event.Kind)), slog.String("text", event.Text), slog.String("event_id", event.ID)}
	if event.Scope != "" {
		attrs = append(attrs, slog.String("scope", event.Scope))
	}
	if event.Rule != "" {
		attrs = append(attrs, slog.String("rule", event.Rule))
	}
	if event.Percent != 0 {
		attrs = append(attrs, slog.Int("percent", event.Percent))
	}
	e.process.log.LogAttrs(ctx, event.level(), "event", attrs...)
}

// call calls the user's function, which must not end the process.
func (e *Events) call(ctx context.Context, event Event) {
	defer func() {
		if x := recover(); x != nil {
			e.process.log.ErrorContext(ctx, "Config.OnEvent panicked", "kind", string(event.Kind), "event_id", event.ID, "panic", fmt.Sprint(x))
		}
	}()
	e.cfg.OnEvent(event)
}
