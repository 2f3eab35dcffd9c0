package riverlimit_test

import "syscall"

// childAttr has the kernel kill a program when the test binary dies.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
