package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/metrics"
)

// NoObserver observes nothing.
type NoObserver struct{ nothing }

type nothing struct{}

func (nothing) PickedUp(string)                                    {}
func (nothing) Holding(int)                                        {}
func (nothing) Held(time.Duration)                                 {}
func (nothing) Rescheduled(string, time.Duration)                  {}
func (nothing) Refused(string, string, time.Duration)              {}
func (nothing) Began(time.Duration)                                {}
func (nothing) Ran(context.Context, string, string, time.Duration) {}
func (nothing) MaxWaitExceeded(string, string, time.Duration)      {}
func (nothing) LeaseHeld(string, int)                              {}
func (nothing) DispatcherPolled(string, string, time.Duration)     {}
func (nothing) DispatchLead(time.Duration)                         {}
func (nothing) Failed(string)                                      {}

// Events reports what an operator wants to know at once. Package events has the implementation, so that
// programs without it do not import it. One Events serves one New.
type Events interface {
	throttle.Observer
	// Bind sets what the events name, where their keys are in Redis, and where they are logged and counted. New
	// calls it before anything else.
	Bind(app, prefix string, log *slog.Logger, observer interface {
		Event(kind string)
		EventDelivery(outcome string)
	})
	// DispatcherPolled is Observer.DispatcherPolled.
	DispatcherPolled(provider, label string, next time.Duration)
	// Run reports events until ctx ends. Limits.Begin calls it.
	Run(ctx context.Context, rdb redis.UniversalClient, limiter *throttle.Limiter)
}

// deciding passes what a limiter decides on to the metrics and the events.
type deciding struct {
	*metrics.Metrics
	events Events
}

func (o deciding) Decided(ctx context.Context, d throttle.Decision, took time.Duration, err error) {
	o.Metrics.Decided(ctx, d, took, err)
	o.events.Decided(ctx, d, took, err)
}

func (o deciding) Overspent(rules []throttle.RuleState) { o.events.Overspent(rules) }

func (o deciding) Upstream(change throttle.UpstreamChange) {
	o.Metrics.Upstream(change)
	o.events.Upstream(change)
}

func (o deciding) TierTrouble(trouble throttle.TierTrouble) {
	o.Metrics.TierTrouble(trouble)
	o.events.TierTrouble(trouble)
}

// polls passes polls on to the events.
type polls struct {
	NoObserver
	events Events
}

func (p polls) DispatcherPolled(provider, label string, next time.Duration) {
	p.events.DispatcherPolled(provider, label, next)
}

// observers calls each Observer in order.
type observers []Observer

func (all observers) each(call func(Observer)) {
	for _, o := range all {
		call(o)
	}
}

func (all observers) PickedUp(queue string)    { all.each(func(o Observer) { o.PickedUp(queue) }) }
func (all observers) Holding(delta int)        { all.each(func(o Observer) { o.Holding(delta) }) }
func (all observers) Held(took time.Duration)  { all.each(func(o Observer) { o.Held(took) }) }
func (all observers) Began(late time.Duration) { all.each(func(o Observer) { o.Began(late) }) }
func (all observers) Failed(kind string)       { all.each(func(o Observer) { o.Failed(kind) }) }

func (all observers) Rescheduled(queue string, wait time.Duration) {
	all.each(func(o Observer) { o.Rescheduled(queue, wait) })
}

func (all observers) Refused(queue, why string, wait time.Duration) {
	all.each(func(o Observer) { o.Refused(queue, why, wait) })
}

func (all observers) Ran(ctx context.Context, queue, outcome string, took time.Duration) {
	all.each(func(o Observer) { o.Ran(ctx, queue, outcome, took) })
}

func (all observers) MaxWaitExceeded(queue, became string, waited time.Duration) {
	all.each(func(o Observer) { o.MaxWaitExceeded(queue, became, waited) })
}

func (all observers) LeaseHeld(rule string, delta int) {
	all.each(func(o Observer) { o.LeaseHeld(rule, delta) })
}

func (all observers) DispatcherPolled(provider, label string, next time.Duration) {
	all.each(func(o Observer) { o.DispatcherPolled(provider, label, next) })
}

func (all observers) DispatchLead(lead time.Duration) {
	all.each(func(o Observer) { o.DispatchLead(lead) })
}
