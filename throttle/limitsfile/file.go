package limitsfile

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	// settles is how long a file must have been unchanged before it is read: a program that writes it in place may be half-way through, and
	// half a file can be a valid one.
	settles = time.Second
	// settleBound is how long a program that starts waits for a file that others keep writing.
	settleBound = 30 * time.Second
)

// ErrBusy is wrapped by the error for a file that is being written all the time.
var ErrBusy = fmt.Errorf("is being written all the time: it has not stayed as it is for %s", settles)

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// File is a limits file as it was last read. The zero File is no file.
type File struct {
	path   string
	text   []byte
	stood  Stamp
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

// Stamp identifies a version of a file. The zero Stamp stands for no file.
type Stamp struct{ info fs.FileInfo }

// stampOf is the stamp of a file, or of what a symlink leads to: a Kubernetes ConfigMap changes by another target.
func stampOf(path string) (Stamp, error) {
	info, err := os.Stat(path)
	return Stamp{info}, err
}

// same tells whether it is the same file, and has not been written since.
func (s Stamp) same(other Stamp) bool {
	if s.info == nil || other.info == nil {
		return s.info == other.info
	}
	return s.info.ModTime().Equal(other.info.ModTime()) && s.info.Size() == other.info.Size() && os.SameFile(s.info, other.info)
}

// sameFile reports whether both are of one file, which was at most written in place in between. A file that was renamed to the name, or
// that a link leads to now, is another.
func (s Stamp) sameFile(other Stamp) bool {
	return s.info != nil && other.info != nil && os.SameFile(s.info, other.info)
}

// regular is false of a pipe, which can be read once.
func (s Stamp) regular() bool { return s.info != nil && s.info.Mode().IsRegular() }

// old tells whether it was written long enough ago, by the file's own clock.
func (s Stamp) old() bool { return !s.regular() || time.Since(s.info.ModTime()) >= settles }

// ReadSettled reads a file once it has not changed for a second.
func ReadSettled(ctx context.Context, path string) ([]byte, Stamp, error) {
	waits, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	seen, err := stampOf(path)
	for err == nil {
		if !seen.old() && !pause(waits, settles) {
			if ctx.Err() != nil {
				return nil, seen, ctx.Err()
			}
			return nil, seen, fmt.Errorf("%s %w; write another file and rename it to this one", path, ErrBusy)
		}
		var text []byte
		var stands Stamp
		if text, stands, err = readFile(path); err == nil && (stands.same(seen) || !seen.regular()) {
			return text, stands, nil
		}
		seen = stands
	}
	return nil, seen, err
}

// readFile reads a file. The stamp is that of what stands there afterwards.
func readFile(path string) (text []byte, stands Stamp, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, stands, err
	}
	defer func() { _ = file.Close() }() // nothing was written that could be lost
	if text, err = io.ReadAll(io.LimitReader(file, limitsyaml.MaxBytes+1)); err != nil {
		return nil, stands, err
	}
	stands, err = stampOf(path)
	return text, stands, err
}

// fileModes reports whether a file's mode shows which users may write it.
const fileModes = runtime.GOOS != "windows"

// WarnOfMode logs a warning if other users can write the file, and reports whether it did.
func WarnOfMode(ctx context.Context, log *slog.Logger, path string, stands Stamp) bool {
	const others = 0o022
	if !fileModes || !stands.regular() || stands.info.Mode().Perm()&others == 0 {
		return false
	}
	log.WarnContext(ctx, "file is writable by users other than its owner; run chmod go-w", "file", path, "mode", stands.info.Mode().String())
	return true
}
