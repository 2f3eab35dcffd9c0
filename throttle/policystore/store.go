// Package policystore keeps limits in Redis, where they can be changed while tasks run. It holds versions of one policy, each with its
// author, time and reason, and a history that supports rollback.
//
//	store := policystore.New(rdb, policystore.Config{})
//	_, err := store.Set(ctx, policystore.Edit{By: "anna"}, "payments/acme", "tenant", map[string]string{"limit": "100"})
//
// Every process that decides calls Follow. All of them put a new version in force at the same moment, at most a second after it was written.
//
// A version has two layers: the limits file that workers published, or an imported policy, and the live changes over it.
package policystore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Config configures a Store. The zero Config is ready to use.
type Config struct {
	Prefix string // begins the keys: letters, digits, '-', '_' and '.'; defaults to "hw"
}

// Store keeps the versions of one policy in a hash in Redis, and the processes that use them beside it. It is safe for concurrent use, by
// any number of processes. Its methods return ctx's error, one that wraps throttle.ErrUnavailable, or those that each of them documents.
// Methods that change the limits also return one that wraps ErrNotPermitted.
type Store struct {
	rdb       redis.UniversalClient
	key       string
	processes string // the key of the processes
}

// New returns a Store in rdb. It does no I/O and does not take ownership of rdb.
func New(rdb redis.UniversalClient, cfg Config) *Store {
	prefix := cmp.Or(cfg.Prefix, "hw")
	return &Store{rdb: rdb, key: prefix + ":limits", processes: prefix + ":processes"}
}

// Notice is the time from the writing of a version until it comes into force. By then all processes have read it, and none still grants
// under the version before.
const Notice = 700 * time.Millisecond

// The fields of the hash: the mark of the newest version, a record for each version by its number, and the text of each source by its sum.
const (
	markField     = "version"
	versionPrefix = "v:"
	sourcePrefix  = "s:"
)

func versionField(number int64) string { return versionPrefix + strconv.FormatInt(number, 10) }

// ErrNone is the error for a Redis without limits: none were stored or published.
var ErrNone = errors.New("policystore: there are no limits in Redis")

// ErrNotPermitted is the error for a Redis user that may not change the limits: it lacks a command, or may only read the key.
var ErrNotPermitted = errors.New("policystore: the Redis user may not change the limits")

// VersionError is the error for a version that is not kept any more, or never existed.
type VersionError struct{ Number int64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("policystore: version %d of the limits is not kept any more, or never was", e.Number)
}

// DamagedError is the error for limits in Redis that cannot be decoded: a later release wrote them, or another program.
type DamagedError struct {
	Version int64 // 0 if unknown
	Err     error
}

func (e *DamagedError) Error() string {
	if e.Version == 0 {
		return fmt.Sprintf("policystore: the limits in Redis are damaged: %v", e.Err)
	}
	return fmt.Sprintf("policystore: version %d of the limits in Redis: %v", e.Version, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// denied reports whether Redis denied its user a permission.
func denied(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }

// unavailable returns the error of a Redis that could not be asked, or that of ctx if it has ended.
func unavailable(ctx context.Context, doing string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: %s the limits: %w", throttle.ErrUnavailable, doing, err)
}

// markOf identifies a version by its number and time. A number alone would not do: numbers begin anew in a Redis that was emptied.
func markOf(v Version) string { return fmt.Sprintf("%d:%d", v.Number, v.At.UnixMicro()) }

func numberOf(mark string) (int64, error) {
	digits, _, _ := strings.Cut(mark, ":")
	number, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || number < 1 {
		return 0, &DamagedError{Err: fmt.Errorf("its version is %.40q", mark)}
	}
	return number, nil
}

// mark returns the mark of the newest version, "" if there is none. Costs one round trip.
func (s *Store) mark(ctx context.Context, c redis.Cmdable) (string, error) {
	return s.field(ctx, c, markField)
}

// field reads a field of the hash, "" if it is not there.
func (s *Store) field(ctx context.Context, c redis.Cmdable, name string) (string, error) {
	texts, err := s.fields(ctx, c, name)
	return texts[name], err
}

// Newest returns the number of the newest version, 0 if there is none. The error may be a *DamagedError. Costs one round trip.
func (s *Store) Newest(ctx context.Context) (int64, error) { return s.newest(ctx, s.rdb) }

func (s *Store) newest(ctx context.Context, c redis.Cmdable) (int64, error) {
	mark, err := s.mark(ctx, c)
	if err != nil || mark == "" {
		return 0, err
	}
	return numberOf(mark)
}

// Current returns the newest version. The error is ErrNone if there is none, or a *DamagedError. Costs two round trips.
func (s *Store) Current(ctx context.Context) (Version, error) {
	r, err := s.current(ctx, s.rdb)
	return r.Version, err
}

func (s *Store) current(ctx context.Context, c redis.Cmdable) (record, error) {
	number, err := s.newest(ctx, c)
	if err == nil && number == 0 {
		err = ErrNone
	}
	if err != nil {
		return record{}, err
	}
	r, err := s.record(ctx, c, number)
	if errors.As(err, new(*VersionError)) {
		err = &DamagedError{number, errors.New("it is not there")}
	}
	return r, err
}

// Version returns one version. The error is a *VersionError if it is not kept, or a *DamagedError. Costs one round trip.
func (s *Store) Version(ctx context.Context, number int64) (Version, error) {
	r, err := s.record(ctx, s.rdb, number)
	return r.Version, err
}

func (s *Store) record(ctx context.Context, c redis.Cmdable, number int64) (record, error) {
	text, err := s.field(ctx, c, versionField(number))
	if err != nil {
		return record{}, err
	}
	if text == "" {
		return record{}, &VersionError{number}
	}
	return decode(number, text)
}

// fields reads some fields of the hash, and leaves out those that are not there. The master answers, or the connection c.
func (s *Store) fields(ctx context.Context, c redis.Cmdable, names ...string) (map[string]string, error) {
	var values *redis.SliceCmd
	if c != redis.Cmdable(s.rdb) {
		values = c.HMGet(ctx, s.key, names...)
	} else {
		values, _ = redisread.One(ctx, s.rdb, func(p redis.Pipeliner) *redis.SliceCmd { return p.HMGet(ctx, s.key, names...) }) // which has its error
	}
	if err := values.Err(); err != nil {
		return nil, unavailable(ctx, "read", err)
	}
	texts := map[string]string{}
	for i, value := range values.Val() {
		if text, is := value.(string); is {
			texts[names[i]] = text
		}
	}
	return texts, nil
}

// Policy returns the policy of a version at a time, and when it changes by itself, or zero for never. The error is a *DamagedError if the
// version cannot be decoded. Costs one round trip.
func (s *Store) Policy(ctx context.Context, v Version, at time.Time) (*policy.Policy, time.Time, error) {
	base, err := s.base(ctx, s.rdb, v)
	if err != nil {
		return nil, time.Time{}, err
	}
	return v.policyOver(base, at)
}

// Now returns the policy that is in force. Its errors are those of Current and Policy. Costs a few round trips.
func (s *Store) Now(ctx context.Context) (*policy.Policy, error) {
	v, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	p, _, err := s.Policy(ctx, v, now)
	return p, err
}

// base returns the policy below the changes of a version.
func (s *Store) base(ctx context.Context, c redis.Cmdable, v Version) (*policy.Policy, error) {
	source := v.source()
	if source == nil {
		return new(policy.Policy), nil
	}
	text, err := s.field(ctx, c, sourcePrefix+source.Sum)
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, &DamagedError{v.Number, errors.New("its text is not there")}
	}
	p, err := limitsyaml.Parse("the limits in Redis", []byte(text))
	if err != nil {
		return nil, &DamagedError{v.Number, err}
	}
	return p, nil
}

// clock is the server whose time counts: on a cluster, that of the key.
func (s *Store) clock(ctx context.Context) redis.Cmdable {
	if cluster, is := s.rdb.(*redis.ClusterClient); is {
		if master, err := cluster.MasterForKey(ctx, s.key); err == nil {
			return master
		}
	}
	return s.rdb
}

func serverTime(ctx context.Context, c redis.Cmdable) (time.Time, error) {
	at, err := c.Time(ctx).Result()
	if err != nil {
		return time.Time{}, unavailable(ctx, "ask for the time of", err)
	}
	return at.UTC(), nil
}

// Time returns the Redis server's time, which decides when versions come into force and temporary changes end. Costs one round trip.
func (s *Store) Time(ctx context.Context) (time.Time, error) { return serverTime(ctx, s.clock(ctx)) }

// InForceIn returns the time until a version comes into force, 0 if it has. Costs one round trip.
func (s *Store) InForceIn(ctx context.Context, v Version) (time.Duration, error) {
	now, err := s.Time(ctx)
	return max(0, v.InForce.Sub(now)), err
}
