package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
)

// Chain is the result of Verify.
type Chain struct {
	// Oldest and Newest are the oldest and newest versions kept. Versions before Oldest are not checked.
	Oldest, Newest int64
	// Sound is how many versions fit together, from Oldest on.
	Sound int
	// Hash is the hash of Newest. If it is noted elsewhere, a later Verify can detect that the history up
	// to here was rewritten.
	Hash string
	// Noted is the version that has the hash given to Verify, 0 for none.
	Noted int64
}

// ChainError is the error for a history that was altered.
type ChainError struct {
	// Version is the first version that does not fit. It is 0 if all versions fit, but none has the noted
	// hash.
	Version int64
	Reason  string
}

func (e *ChainError) Error() string {
	if e.Version == 0 {
		return "policystore: " + e.Reason
	}
	return fmt.Sprintf("policystore: version %d of the limits does not fit: %s", e.Version, e.Reason)
}

// Verify checks the history: each version has the hash that the one after it names, and the limits
// that it rests on have theirs. If a noted hash is given, one of the versions must have it. The
// version that the oldest one names is not kept any more. A writer of the key can write a whole new
// chain, which only a noted hash reveals. The error is a *ChainError, ErrNone, or those of Store.
// Costs one round trip, which reads the whole history.
func (s *Store) Verify(ctx context.Context, noted string) (Chain, error) {
	all, err := s.all(ctx)
	if err != nil {
		return Chain{}, err
	}
	if len(all) == 0 {
		return Chain{}, ErrNone
	}
	return verify(all, strings.ToLower(noted))
}

// all returns the fields of the key.
func (s *Store) all(ctx context.Context) (map[string]string, error) {
	var all *redis.MapStringStringCmd
	err := redisread.FromMaster(ctx, s.rdb, func(pipe redis.Pipeliner) error {
		all = pipe.HGetAll(ctx, s.key)
		return nil
	})
	if err != nil {
		return nil, unavailable(ctx, "read", err)
	}
	return all.Val(), nil
}

func verify(all map[string]string, noted string) (Chain, error) {
	newest, hash, err := readMark(all[currentField])
	if err != nil {
		return Chain{}, &ChainError{max(1, highest(all)), "what names the newest version is damaged"}
	}
	links, fault := linksOf(all, newest, hash)
	c := Chain{Newest: newest, Hash: hash}
	if len(links) > 0 {
		c.Oldest = links[0].number
	}
	for _, l := range links {
		if l.reason != "" {
			return c, &ChainError{l.number, l.reason}
		}
		c.Sound++
		if l.hash == noted {
			c.Noted = l.number
		}
	}
	switch {
	case fault != nil:
		return c, fault
	case noted != "" && c.Noted == 0:
		return c, &ChainError{0, fmt.Sprintf("none of versions %d to %d has the hash that was noted: they were rewritten since, or it is of an older one", c.Oldest, c.Newest)}
	}
	return c, nil
}

// link is one version of the chain.
type link struct {
	number int64
	hash   string // of its text
	reason string // why it does not fit, empty if it does
}

// linksOf checks each version by the one after it, and the newest by what names it. It returns them
// oldest first, and what else is wrong.
func linksOf(all map[string]string, newest int64, hash string) (links []link, fault error) {
	known := true // what hash the version must have
	for number := newest; number > 0; number-- {
		text, there := all[fieldOf(number)]
		if !there {
			break
		}
		l := link{number: number, hash: sumOf([]byte(text))}
		v, err := readVersion(number, text)
		switch {
		case known && l.hash != hash:
			l.reason = "its text is not the one that was written"
		case err != nil:
			l.reason = errors.Unwrap(err).Error()
		default:
			l.reason = brokenSource(all, v)
		}
		links = append(links, l)
		hash, known = v.Prev, err == nil // of one that does not fit too: those before it may well
	}
	slices.Reverse(links)
	for field := range all {
		digits, is := strings.CutPrefix(field, versionField)
		number, err := strconv.ParseInt(digits, versionFormat, 64)
		switch {
		case !is:
		case err != nil || fieldOf(number) != field:
			return links, &ChainError{newest, fmt.Sprintf("beside it stands %q, which no program of ours writes", field)}
		case number > newest:
			return links, &ChainError{number, fmt.Sprintf("it stands after version %d, which is the newest", newest)}
		case len(links) == 0 || number < links[0].number:
			missing := newest
			if len(links) > 0 {
				missing = links[0].number - 1
			}
			return links, &ChainError{missing, "it is not there, and an older one is"}
		}
	}
	if len(links) == 0 {
		return nil, &ChainError{newest, "it is not there"}
	}
	return links, nil
}

// brokenSource says what is wrong with the texts that a version rests on, empty for nothing.
func brokenSource(all map[string]string, v Version) string {
	for _, sum := range v.sources() {
		text, there := all[sourceField+sum]
		switch {
		case !there:
			return "the limits that it rests on are not there"
		case sumOf([]byte(text)) != sum:
			return "the limits that it rests on are not those that were written"
		}
	}
	return ""
}

// highest is the largest number of a version, 0 for none.
func highest(all map[string]string) int64 {
	numbers := newestFirst(all)
	if len(numbers) == 0 {
		return 0
	}
	return numbers[0]
}
