// Package lua holds the text of Headway's Redis scripts, one file a script.
//
// Scripts over the limiter's own keys are in this directory, scripts over asynq's keys in asynq/.
// Every script starts with a header that documents its KEYS and ARGV, what it returns and what it
// writes; a test checks the header against the body. Parts that several scripts share are in
// include/, and are inserted at a line "-- #include name", each once. To read an expanded script, run
// "go run ./lua/print.go decide". The hashes of all are in testdata/scripts.sha1, so that the change
// of a shared part shows which scripts it changes.
//
// The package uses no Redis client: packages throttle and worker send the scripts.
//
// Its exported names may change in any version.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is kept secret by it.
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua asynq/*.lua include/*/*.lua
var files embed.FS

// Kinds is the algorithms that a script can be made for, a letter each: token bucket, sliding or
// fixed window, concurrency, calendar.
const Kinds = "TSCK"

// The scripts. Each is expanded once, at its first use: a program pays for no script that it does
// not send. Tests expand all of them.
var (
	Decide       = load("decide")
	DecideMany   = load("decide_many")
	DecideQueued = load("decide_queued")
	Dispatch     = load("dispatch")
	Join         = load("join")
	Inspect      = load("inspect")
	Repair       = load("repair")
	Settle       = load("settle")
	Reset        = load("reset")
	Renew        = load("renew")
	Release      = load("release")
	Heartbeat    = load("heartbeat")

	ReportUpstream = load("report_upstream")

	// These work on asynq's keys and are sent by package worker.
	TakeTasks    = load("asynq/take_tasks")
	TakePending  = load("asynq/take_pending")
	ReleaseTasks = load("asynq/release_tasks")
	DeferTasks   = load("asynq/defer_tasks")
	KeepLeases   = load("asynq/keep_leases")
	PutBack      = load("asynq/put_back")
)

// All returns every script of the limiter, by name: all scripts except those over asynq's keys.
func All() []*Script {
	return []*Script{Decide, DecideMany, DecideQueued, Dispatch, Heartbeat, Inspect, Join, Release, Renew, Repair, ReportUpstream, Reset, Settle}
}

// Script is one script as Redis gets it. It never changes, and is safe for concurrent use.
type Script struct {
	// Name is the file's name without ".lua".
	Name string

	path     string       // of the file, without ".lua"
	expanded func() ready // once
	variants *sync.Map    // by kinds, made at their first use
}

// ready is an expanded script.
type ready struct {
	source, sha string
	arg         any // sha as an argument for clients: to convert it at each call would be an allocation
}

// Source returns the text with every include inserted. The first call for a script takes about a millisecond.
func (s *Script) Source() string { return s.expanded().source }

// SHA returns the name that EVALSHA takes for the script: the SHA-1 of Source in hex.
func (s *Script) SHA() string { return s.expanded().sha }

// Arg returns SHA as an argument for clients, without an allocation.
func (s *Script) Arg() any { return s.expanded().arg }

// For returns the script with only the algorithms of the given kinds, which are in the order of
// [Kinds] and each once. For calls whose rules are all of these kinds it returns what the whole
// script returns, in less time and with a shorter text. If the script has no parts by kind, the
// text is the same for all kinds.
func (s *Script) For(kinds string) *Script {
	if s.variants == nil {
		return s
	}
	if v, ok := s.variants.Load(kinds); ok {
		return v.(*Script) //nolint:forcetypeassert // see below
	}
	if !inOrder(kinds) {
		return s
	}
	first, _ := s.variants.LoadOrStore(kinds, script(s.path, kinds))
	return first.(*Script) //nolint:forcetypeassert // as above
}

// inOrder reports whether kinds are some of Kinds in their order, each once.
func inOrder(kinds string) bool {
	rest := kinds
	for i := range len(Kinds) {
		rest = strings.TrimPrefix(rest, Kinds[i:i+1])
	}
	return rest == "" && kinds != ""
}

func load(path string) *Script {
	s := script(path, Kinds)
	s.variants = &sync.Map{}
	return s
}

func script(file, kinds string) *Script {
	return &Script{Name: file[strings.LastIndexByte(file, '/')+1:], path: file, expanded: sync.OnceValue(func() ready { return expandedFor(file, kinds) })}
}

func expandedFor(path, kinds string) ready {
	source, err := expand(files, path, kinds)
	if err != nil {
		panic("lua: " + err.Error())
	}
	return readyOf(source)
}

func readyOf(source string) ready {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	hash := hex.EncodeToString(sum[:])
	return ready{source: source, sha: hash, arg: hash}
}

// Fence returns a script that ends the run of a task, asynq's or put_back, as package worker sends it:
// after include/asynq/fence.lua, which documents its arguments.
func Fence(source string) string {
	text, err := files.ReadFile("include/asynq/fence.lua")
	if err != nil {
		panic("lua: " + err.Error())
	}
	return string(text) + source
}

// Rule returns the text of a rule for a script: its kind, a letter of [Kinds], and its numbers, from
// 0 to 2^53, in the order of include/core/rules.lua. A calendar has five more numbers than other rules.
func Rule(kind byte, numbers [4]int64, more ...int64) string {
	text := make([]byte, 0, 1+7*(len(numbers)+len(more)))
	text = append(text, kind)
	for _, n := range slices.Concat(numbers[:], more) {
		for shift := 48; shift >= 0; shift -= 8 {
			text = append(text, byte(n>>shift))
		}
	}
	return string(text)
}

const includeMark = "-- #include "

// expand returns the text of a script with its includes inserted where they are named, and the
// includes of these. An include "when" a kind is left out unless kinds has that letter. The error
// names the file and line of an include that does not exist or is included twice.
func expand(files fs.FS, path, kinds string) (string, error) {
	text, err := fs.ReadFile(files, path+".lua")
	if err != nil {
		return "", fmt.Errorf("no script %q", path)
	}
	e := expansion{files: files, kinds: kinds, seen: map[string]bool{}}
	err = e.put(path+".lua", string(text))
	return e.out.String(), err
}

// expansion is a script while its includes are inserted.
type expansion struct {
	files fs.FS
	kinds string
	seen  map[string]bool
	out   strings.Builder
}

func (e *expansion) put(file, text string) error {
	for i, line := range strings.SplitAfter(text, "\n") {
		part, ok := strings.CutPrefix(strings.TrimSpace(line), includeMark)
		if !ok {
			e.out.WriteString(line)
			continue
		}
		part, kind, _ := strings.Cut(part, " when ")
		if e.seen[part] {
			return fmt.Errorf("%s:%d: %q is included twice", file, i+1, part)
		}
		e.seen[part] = true
		if !strings.Contains(e.kinds, kind) {
			continue
		}
		included := "include/" + part + ".lua"
		body, err := fs.ReadFile(e.files, included)
		if err != nil {
			return fmt.Errorf("%s:%d: no %s", file, i+1, included)
		}
		if err := e.put(included, string(body)); err != nil {
			return err
		}
	}
	return nil
}
