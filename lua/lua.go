// Package lua holds the text of Headway's Redis scripts, one file a script.
//
// Scripts over the limiter's own keys are in this directory, scripts over asynq's keys in asynq/. Every script starts with a header
// that documents its KEYS and ARGV, what it returns and what it writes. Parts that several scripts share are in include/, and are
// inserted at a line "-- #include name", each once. To read an expanded script, run "go run ./lua/print.go decide".
//
// The package uses no Redis client: packages throttle, internal/waitlist and worker send the scripts.
//
// Its exported names may change in any version.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is kept secret by it.
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua include/*.lua asynq/*.lua
var files embed.FS

// The scripts. Each is expanded once, at its first use: a program pays for no script that it does not send.
var (
	Ack       = load("ack")
	Decide    = load("decide")
	Dispatch  = load("dispatch")
	Heartbeat = load("heartbeat")
	Inspect   = load("inspect")
	Join      = load("join")
	Repair    = load("repair")
	Report    = load("report")
	Reset     = load("reset")
	Settle    = load("settle")

	// These work on asynq's keys and are sent by package worker.
	KeepLeases  = load("asynq/keep_leases")
	MoveTasks   = load("asynq/move_tasks")
	PutBack     = load("asynq/put_back")
	TakePending = load("asynq/take_pending")
)

// All returns every script of the limiter, by name: all scripts except those over asynq's keys.
func All() []*Script {
	return []*Script{Ack, Decide, Dispatch, Heartbeat, Inspect, Join, Repair, Report, Reset, Settle}
}

// OnAsynq returns the scripts over asynq's keys.
func OnAsynq() []*Script {
	return []*Script{KeepLeases, MoveTasks, PutBack, TakePending}
}

// Script is one script as Redis gets it. It never changes, and is safe for concurrent use.
type Script struct {
	// Name is the file's name without ".lua".
	Name string

	path     string       // of the file, without ".lua"
	expanded func() ready // once
}

// ready is an expanded script.
type ready struct{ source, sha string }

// Source returns the text with every include inserted. The first call for a script takes about a millisecond.
func (s *Script) Source() string { return s.expanded().source }

// SHA returns the name that EVALSHA takes for the script: the SHA-1 of Source in hex.
func (s *Script) SHA() string { return s.expanded().sha }

func load(name string) *Script {
	return &Script{Name: path.Base(name), path: name, expanded: sync.OnceValue(func() ready {
		source, err := expand(files, name)
		if err != nil {
			panic("lua: " + err.Error())
		}
		sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
		return ready{source, hex.EncodeToString(sum[:])}
	})}
}

// Fence returns a script that ends the run of a task, asynq's or put_back, as package worker sends it: after asynq/fence.lua, which
// documents its arguments.
func Fence(source string) string {
	text, err := files.ReadFile("asynq/fence.lua")
	if err != nil {
		panic("lua: " + err.Error())
	}
	return string(text) + source
}

// The lines from "-- #for join, inspect" to "-- #end" are for these scripts alone.
const includeMark, forMark, endMark = "-- #include ", "-- #for ", "-- #end"

// expand returns a script with its includes and without comments. The error names a file that does not exist.
//
// What all scripts of the limiter use, include/base, comes first, and all else is one function: a local of the outermost function
// costs each function that uses it a search among all of those.
func expand(files fs.FS, name string) (string, error) {
	e := expansion{files: files, script: path.Base(name), seen: map[string]bool{}}
	e.put(name)
	if out := e.out.String(); e.base != "" {
		return e.base + "local function run()\n" + out + "end\nreturn run()\n", e.err
	}
	return e.out.String(), e.err
}

// expansion is a script while its includes are inserted.
type expansion struct {
	files  fs.FS
	script string
	seen   map[string]bool
	base   string
	out    strings.Builder
	err    error
}

func (e *expansion) put(name string) {
	text, err := fs.ReadFile(e.files, name+".lua")
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("no script or include %q", name)
	}
	skips := false
	for line := range strings.SplitAfterSeq(string(text), "\n") {
		bare := strings.TrimSpace(line)
		if scripts, is := strings.CutPrefix(bare, forMark); is {
			skips = !slices.Contains(strings.Split(scripts, ", "), e.script)
		}
		skips = skips && bare != endMark
		part, includes := strings.CutPrefix(bare, includeMark)
		switch {
		case skips:
		case includes && !e.seen[part]:
			e.seen[part] = true
			before := e.out.Len()
			if e.put("include/" + part); part == "base" {
				e.base = e.out.String()[before:]
				rest := e.out.String()[:before]
				e.out.Reset()
				e.out.WriteString(rest)
			}
		case !strings.HasPrefix(bare, "--") && bare != "":
			e.out.WriteString(line)
		}
	}
}
