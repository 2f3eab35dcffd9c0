// Pack packs each directory of FROM into an archive of TO, and writes the archives' sums into TO/SHA256SUMS:
//
//	go run .ci/pack.go TIME FROM TO
//
// Nothing of the machine gets into an archive: files are sorted, belong to nobody, can be read by all, and were changed at TIME,
// in unix seconds. It is a program of its own since tar and gzip differ from system to system.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: go run .ci/pack.go TIME FROM TO")
		os.Exit(2)
	}
	if err := packAll(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func packAll(seconds, from, to string) error {
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	dirs, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, dir := range dirs {
		archive, err := pack(filepath.Join(from, dir.Name()), time.Unix(unix, 0))
		if err != nil {
			return err
		}
		name := dir.Name() + ".tar.gz"
		if err := os.WriteFile(filepath.Join(to, name), archive, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(archive), name)
	}
	return os.WriteFile(filepath.Join(to, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// pack returns the files of dir as a tar.gz. os.ReadDir sorts them.
func pack(dir string, at time.Time) ([]byte, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(zip)
	for _, file := range files {
		info, err := file.Info()
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: file.Name(), Size: int64(len(text)), Mode: 0o644, ModTime: at, Format: tar.FormatUSTAR}
		if info.Mode()&0o100 != 0 {
			header.Mode = 0o755
		}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(text); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
