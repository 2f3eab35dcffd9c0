package answers

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// keptEvents is how many events of a level are kept, and eventsStay for how long after the newest.
const (
	keptEvents = 20
	eventsStay = 24 * time.Hour
)

// Event is a past change that an API's answer made.
type Event struct {
	// At is when the answer was reported, by the Redis server's clock.
	At time.Time
	// What, Scope, Rule, Limit and Until are those of the Change.
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

// eventRecord is an Event in Redis; docs/keys.md has its fields.
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

// record keeps what an answer changed, for people, in one round trip. A failure is logged alone: no limit depends on it.
func (r *Reporter) record(ctx context.Context, a answer, changes []Change, at time.Time) {
	if len(changes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	_, err := r.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, change := range changes {
			text, err := json.Marshal(recordOf(a, change, at))
			if err != nil {
				return err
			}
			key := eventsKey(a.scope.Prefix, change.Scope)
			pipe.ZAdd(ctx, key, redis.Z{Score: float64(at.UnixMicro()), Member: text})
			pipe.ZRemRangeByRank(ctx, key, 0, -keptEvents-1)
			pipe.PExpire(ctx, key, eventsStay)
		}
		return nil
	})
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "cannot record what an API's answer changed; limits are not affected", "scope", a.scope.Scope.String(), "error", err)
	}
}

func eventsKey(prefix, level string) string { return prefix + "e:" + wire.Path(level) }

func recordOf(a answer, change Change, at time.Time) eventRecord {
	e := eventRecord{At: at.UnixMicro(), What: change.What, Rule: change.Rule, Limit: change.Limit, Status: a.Status, Host: a.Host}
	if !change.Until.IsZero() {
		e.Until = change.Until.UnixMicro()
	}
	if answered := a.scope.Scope.String(); answered != change.Scope {
		e.By = answered
	}
	if a.RetryKnown {
		retry := a.Retry.Microseconds()
		e.Retry = &retry
	}
	return e
}

// Events is throttle.Limiter.UpstreamEvents.
func (r *Reporter) Events(ctx context.Context, scope string) ([]Event, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	pipe := r.cfg.Redis.Pipeline()
	prefix, kept := wire.Prefix(r.cfg.Base, s.Provider()), make([]*redis.StringSliceCmd, s.Len())
	for i := range kept {
		kept[i] = pipe.ZRange(ctx, eventsKey(prefix, s.Prefix(i+1).String()), 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wire.Unavailable(ctx, "ask what was reported of", scope, err)
	}
	var all []Event
	for i, level := range kept {
		for _, text := range level.Val() {
			if e, is := readEvent(s.Prefix(i+1).String(), text); is {
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.What, b.What), cmp.Compare(a.Rule, b.Rule))
	})
	return all, nil
}

func readEvent(level, text string) (Event, bool) {
	var r eventRecord
	if json.Unmarshal([]byte(text), &r) != nil || r.At <= 0 {
		return Event{}, false // not written by this package
	}
	e := Event{
		At: time.UnixMicro(r.At), What: r.What, Scope: level, Rule: r.Rule, Limit: r.Limit, Answered: cmp.Or(r.By, level), Status: r.Status, Host: r.Host,
	}
	if r.Until > 0 {
		e.Until = time.UnixMicro(r.Until)
	}
	if e.RetryKnown = r.Retry != nil; e.RetryKnown {
		e.Retry = time.Duration(*r.Retry) * time.Microsecond
	}
	return e, true
}
