package throttle

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// keptEvents is how many events of a level are kept, and eventsStay for how long after the newest.
const (
	keptEvents = 20
	eventsStay = 24 * time.Hour
)

// UpstreamEvent is a past change that an API's answer made.
type UpstreamEvent struct {
	// At is when the answer was reported, by the Redis server's clock.
	At time.Time
	// What, Scope, Rule, Limit and Until are those of the UpstreamChange.
	What, Scope, Rule string
	Limit             int64
	Until             time.Time
	// Answered is the scope whose call was answered: Scope, or one below it.
	Answered string
	// Status, Retry, RetryKnown and Host are those of the answer, upstream.Hint.
	Status     int
	Retry      time.Duration
	RetryKnown bool
	Host       string
}

// eventRecord is an UpstreamEvent in Redis; docs/keys.md has its fields.
type eventRecord struct {
	At     int64  `json:"at"` // µs
	What   string `json:"what"`
	Rule   string `json:"rule,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	Until  int64  `json:"until,omitempty"` // µs
	By     string `json:"by,omitempty"`    // the scope that was answered, if it is another
	Status int    `json:"status,omitempty"`
	Retry  *int64 `json:"retry,omitempty"` // µs, nil if it is not known
	Host   string `json:"host,omitempty"`
}

// recordEvents keeps what an answer changed, for people. It costs a round trip, and two while a level has more than it keeps.
func (l *Limiter) recordEvents(ctx context.Context, p *plan, a upstream.Hint, changes []UpstreamChange, at time.Time) {
	events := map[string][]redis.Z{}
	for _, change := range changes {
		text, err := json.Marshal(recordOf(p, a, change, at))
		if err != nil {
			continue // it has only texts and numbers
		}
		key := p.Prefix + "e:" + wire.Path(change.Scope)
		events[key] = append(events[key], redis.Z{Score: float64(at.UnixMicro()), Member: text})
	}
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
	defer cancel()
	if err := l.addEvents(ctx, events); err != nil {
		l.cfg.Logger.WarnContext(ctx, "cannot record what an API's answer changed; limits are not affected", "scope", p.Scope.Scope.String(), "error", err)
	}
}

func recordOf(p *plan, a upstream.Hint, change UpstreamChange, at time.Time) eventRecord {
	r := eventRecord{At: at.UnixMicro(), What: change.What, Rule: change.Rule, Limit: change.Limit, Status: a.Status, Host: a.Host}
	if !change.Until.IsZero() {
		r.Until = change.Until.UnixMicro()
	}
	if answered := p.Scope.Scope.String(); answered != change.Scope {
		r.By = answered
	}
	if a.RetryKnown {
		retry := a.Retry.Microseconds()
		r.Retry = &retry
	}
	return r
}

// addEvents adds events by the keys of their levels, and removes the oldest of those that are too many.
func (l *Limiter) addEvents(ctx context.Context, events map[string][]redis.Z) error {
	surplus := map[string]*redis.ZSliceCmd{}
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for key, some := range events {
			pipe.ZAdd(ctx, key, some...)
			pipe.PExpire(ctx, key, eventsStay)
			surplus[key] = pipe.ZRangeWithScores(ctx, key, -keptEvents-1, -keptEvents-1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, last := range surplus {
		if len(last.Val()) == 0 {
			continue
		}
		upTo := strconv.FormatFloat(last.Val()[0].Score, 'f', 0, 64)
		if err := l.rdb.ZRemRangeByScore(ctx, key, "-inf", upTo).Err(); err != nil {
			return err
		}
	}
	return nil
}

// UpstreamEvents returns the past changes that APIs' answers made at a scope and the scopes above it, newest first: the last 20 of each
// level, until a day after its newest. An answer that changed nothing, such as a further refusal during a pause, is no event. Costs one
// round trip, with one command for each level. Its errors are those of Report.
func (l *Limiter) UpstreamEvents(ctx context.Context, scope string) ([]UpstreamEvent, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	prefix, kept := wire.Prefix(l.cfg.Prefix, s.Provider()), make([]*redis.StringSliceCmd, s.Len())
	for i := range kept {
		kept[i] = pipe.ZRange(ctx, prefix+"e:"+wire.Path(s.Prefix(i+1).String()), -keptEvents, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wire.Unavailable(ctx, "ask what was reported of", scope, err)
	}
	var all []UpstreamEvent
	for i, level := range kept {
		for _, text := range level.Val() {
			if e, is := readEvent(s.Prefix(i+1).String(), text); is {
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b UpstreamEvent) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.What, b.What), cmp.Compare(a.Rule, b.Rule))
	})
	return all, nil
}

func readEvent(level, text string) (UpstreamEvent, bool) {
	var r eventRecord
	if json.Unmarshal([]byte(text), &r) != nil || r.At <= 0 {
		return UpstreamEvent{}, false // not written by this package
	}
	e := UpstreamEvent{
		At: time.UnixMicro(r.At), What: r.What, Scope: level, Rule: r.Rule, Limit: r.Limit, Answered: cmp.Or(r.By, level), Status: r.Status, Host: r.Host,
	}
	if r.Until > 0 {
		e.Until = time.UnixMicro(r.Until)
	}
	if e.RetryKnown = r.Retry != nil; e.RetryKnown {
		e.Retry = us(*r.Retry)
	}
	return e, true
}
