package schedule

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// recordsKey is a sorted set: for each schedule, the time (unix seconds) up to which all its runs have been enqueued.
	recordsKey = "hw:schedules"
	// recordsTTL is how long a record, and the key, outlast their last use.
	recordsTTL = 366 * 24 * time.Hour

	// overtaken is how much later the record of another expression of the same name must be to show that
	// this one was not in force. Records of expressions in force are never behind by more than late.
	overtaken = 5 * time.Minute
)

// records are the records in Redis. ZADD GT advances a score and never moves it back, so no locks or comparisons are needed here.
type records struct{ rdb redis.UniversalClient }

// state is a snapshot of the records and the time in Redis.
type state struct {
	read  time.Time // by the local clock, when it was requested
	exact time.Time // by Redis's clock
	now   time.Time // the same in whole seconds, the resolution of records
	until map[string]time.Time
}

// read reads the time and all records. Costs one round trip.
func (r records) read(ctx context.Context) (state, error) {
	st := state{read: time.Now(), until: map[string]time.Time{}}
	pipe := r.rdb.Pipeline()
	clock := pipe.Time(ctx)
	all := pipe.ZRangeWithScores(ctx, recordsKey, 0, -1)
	if _, err := pipe.Exec(ctx); err != nil {
		return st, fmt.Errorf("schedule: read the records: %w", err)
	}
	st.exact = clock.Val()
	st.now = st.exact.Truncate(time.Second)
	for _, z := range all.Val() {
		if member, ok := z.Member.(string); ok {
			st.until[member] = time.Unix(int64(z.Score), 0)
		}
	}
	return st, nil
}

// done returns the time up to which the runs of a schedule have been enqueued, and false if the schedule has
// no record yet. For a process that begins, an expression that was replaced for a while continues from the
// record of its replacement: the runs in between count as done.
func (st state) done(e *entry, beginning bool) (time.Time, bool) {
	own, known := st.until[e.member]
	if !known || !beginning {
		return own, known
	}
	latest := own.Add(overtaken)
	for member, until := range st.until {
		if _, name, _ := strings.Cut(member, ":"); name == e.Name && until.After(latest) {
			own, latest = until, until
		}
	}
	return own, true
}

// marks are how far records may advance.
type marks struct {
	now          time.Time
	first, later []redis.Z // of schedules without a record, and of the others
}

func record(member string, until time.Time) redis.Z {
	return redis.Z{Score: float64(until.Unix()), Member: member}
}

// write advances records, also after ctx has ended. A value that another process has advanced further, or
// has created first, stays. Costs one round trip, or none if there are no marks.
func (r records) write(ctx context.Context, m marks) error {
	if len(m.first)+len(m.later) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	_, err := r.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		if len(m.first) > 0 {
			pipe.ZAddArgs(ctx, recordsKey, redis.ZAddArgs{NX: true, Members: m.first})
		}
		if len(m.later) > 0 {
			pipe.ZAddArgs(ctx, recordsKey, redis.ZAddArgs{GT: true, Members: m.later})
		}
		pipe.ZRemRangeByScore(ctx, recordsKey, "-inf", "("+strconv.FormatInt(m.now.Add(-recordsTTL).Unix(), 10))
		pipe.PExpire(ctx, recordsKey, recordsTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: write the records: %w", err)
	}
	return nil
}
