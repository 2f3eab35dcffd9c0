package worker

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/events"
	"github.com/headway-go/headway/worker/metrics"
)

// NoObserver observes nothing.
type NoObserver struct{ nothing }

var _ Observer = NoObserver{}

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
func (nothing) DispatcherPolled(string, string, bool)              {}
func (nothing) DispatchLead(time.Duration)                         {}
func (nothing) Failed(string)                                      {}

// deciding passes what a limiter decides on to the metrics and the events.
type deciding struct {
	*metrics.Metrics
	events *events.Events
}

func (d deciding) Decided(ctx context.Context, one throttle.Decision, took time.Duration, err error) {
	d.Metrics.Decided(ctx, one, took, err)
	d.events.Decided(ctx, one, took, err)
}

// polls passes polls on to the events.
type polls struct {
	NoObserver
	events *events.Events
}

func (p polls) DispatcherPolled(provider, label string, again bool) {
	p.events.DispatcherPolled(provider, label, again)
}

// observers calls each Observer in order.
type observers []Observer

func (o observers) each(tell func(Observer)) {
	for _, one := range o {
		tell(one)
	}
}

func (o observers) PickedUp(queue string)   { o.each(func(one Observer) { one.PickedUp(queue) }) }
func (o observers) Holding(delta int)       { o.each(func(one Observer) { one.Holding(delta) }) }
func (o observers) Held(took time.Duration) { o.each(func(one Observer) { one.Held(took) }) }
func (o observers) Rescheduled(queue string, wait time.Duration) {
	o.each(func(one Observer) { one.Rescheduled(queue, wait) })
}

func (o observers) Refused(queue, why string, wait time.Duration) {
	o.each(func(one Observer) { one.Refused(queue, why, wait) })
}
func (o observers) Began(late time.Duration) { o.each(func(one Observer) { one.Began(late) }) }
func (o observers) Ran(ctx context.Context, queue, outcome string, took time.Duration) {
	o.each(func(one Observer) { one.Ran(ctx, queue, outcome, took) })
}

func (o observers) MaxWaitExceeded(queue, became string, waited time.Duration) {
	o.each(func(one Observer) { one.MaxWaitExceeded(queue, became, waited) })
}

func (o observers) LeaseHeld(rule string, delta int) {
	o.each(func(one Observer) { one.LeaseHeld(rule, delta) })
}

func (o observers) DispatcherPolled(provider, label string, again bool) {
	o.each(func(one Observer) { one.DispatcherPolled(provider, label, again) })
}
func (o observers) DispatchLead(lead time.Duration) {
	o.each(func(one Observer) { one.DispatchLead(lead) })
}
func (o observers) Failed(kind string) { o.each(func(one Observer) { one.Failed(kind) }) }
