package limitsfile

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// settleBound is how long a program that starts waits for a file that others keep writing.
const settleBound = 30 * time.Second

// ErrBusy is wrapped by the error for a file that is being written all the time.
var ErrBusy = fmt.Errorf("is being written all the time: it has not stayed as it is for %s", filewatch.Settles)

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	wait, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-wait.Done()
	return ctx.Err() == nil
}

// File is a limits file as it was last read. The zero File is no file.
type File struct {
	path   string
	text   []byte
	stood  filewatch.Stamp
	policy *policy.Policy
}

// Of returns a File of limits from Go values, which Settle publishes like a file; name stands for its path in logs.
func Of(name string, p *policy.Policy) File {
	return File{path: name, text: limitsyaml.Format(p), policy: p}
}

// Policy returns the policy of the file, or nil if there is none.
func (f File) Policy() *policy.Policy { return f.policy }

// Read reads a limits file once it has not changed for a second: a program that writes it in place may be half-way through. An empty path
// is no file. The error is a *policy.Error, that of the file system, ctx's, or ErrBusy.
func Read(ctx context.Context, path string) (File, error) {
	f := File{path: path}
	if path == "" {
		return f, nil
	}
	var err error
	if f.text, f.stood, err = ReadSettled(ctx, path); err != nil {
		return f, err
	}
	f.policy, err = limitsyaml.Parse(path, f.text)
	return f, err
}

// regular is false for a pipe, which can be read once.
func regular(s filewatch.Stamp) bool { return s.Info != nil && s.Info.Mode().IsRegular() }

// settled reports whether a file was written long enough ago, by its own clock.
func settled(s filewatch.Stamp) bool {
	return !regular(s) || time.Since(s.Info.ModTime()) >= filewatch.Settles
}

// ReadSettled reads a file once it has not changed for a second.
func ReadSettled(ctx context.Context, path string) ([]byte, filewatch.Stamp, error) {
	waits, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	seen, err := filewatch.StampOf(path)
	for err == nil {
		if !settled(seen) && !pause(waits, filewatch.Settles) {
			if ctx.Err() != nil {
				return nil, seen, ctx.Err()
			}
			return nil, seen, fmt.Errorf("%s %w; write another file and rename it to this one", path, ErrBusy)
		}
		var text []byte
		var stands filewatch.Stamp
		if text, stands, err = readFile(path); err == nil && (stands.Same(seen) || !regular(seen)) {
			return text, stands, nil
		}
		seen = stands
	}
	return nil, seen, err
}

// readFile reads a file. The stamp is that of what stands there afterwards.
func readFile(path string) (text []byte, stands filewatch.Stamp, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, stands, err
	}
	defer func() { _ = file.Close() }() // nothing was written that could be lost
	if text, err = io.ReadAll(io.LimitReader(file, limitsyaml.MaxBytes+1)); err != nil {
		return nil, stands, err
	}
	stands, err = filewatch.StampOf(path)
	return text, stands, err
}

// fileModes reports whether a file's mode shows which users may write it.
const fileModes = runtime.GOOS != "windows"

// WarnOfMode logs a warning if other users can write the file, and reports whether it did.
func WarnOfMode(ctx context.Context, log *slog.Logger, path string, stands filewatch.Stamp) bool {
	const others = 0o022
	if !fileModes || !regular(stands) || stands.Info.Mode().Perm()&others == 0 {
		return false
	}
	log.WarnContext(ctx, "file is writable by users other than its owner; run chmod go-w", "file", path, "mode", stands.Info.Mode().String())
	return true
}
