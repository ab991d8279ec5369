#!/usr/bin/env bash
# Runs an x86-64 Linux program on a processor that this machine does not have.
#
#   tools/emulate.sh --setup
#   tools/emulate.sh [--cpu ifma|avx512|avx2|sse42] [--env NAME=VALUE]... [--timeout SECONDS] PROGRAM [ARGUMENT]...
#
# The program, static or dynamic, is packed into an initramfs that a small Debian kernel boots inside Bochs, an
# interpreter of whole machines that knows AVX-512. Standard output and error and the exit status come back.
#
#   --cpu      ifma (AVX-512 with IFMA, the default), avx512 (AVX-512 without IFMA), avx2 (with BMI2 and ADX), sse42
#   --env      sets a variable for the program, which sees nothing of this environment otherwise; may be repeated
#   --timeout  wall-clock limit in seconds, 1800 if not given
#   --setup    fetches what is needed: Debian packages (as root; names the missing ones otherwise) and the kernel,
#              which is kept in ${XDG_CACHE_HOME:-~/.cache}/peregrine/emulator
#
# The exit status is the program's; 128 + N if signal N ended it, so 132 for an instruction that the emulated processor
# lacks; 124 when the time is over; 125 if the emulator failed; 2 for wrong use.
#
# There is one processor, 512 MiB or more of memory, no network, no input, and no file but the program and its
# libraries. Time inside is not real: measure nothing there. build-bochs.sh makes a Bochs that is several times faster.
#
# For cargo:
#   export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tools/emulate.sh --cpu ifma --env EXPECT_ISA=ifma"
#   cargo test --release --target x86_64-unknown-linux-gnu -p peregrine-kernels --test simd
set -euo pipefail
export LC_ALL=C

readonly PACKAGES=(
  bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso cpio binutils busybox-static
)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/peregrine/emulator
kernel=$cache/vmlinuz

fail() {
  local status=$1
  shift
  echo "emulate: $*" >&2
  exit "$status"
}

installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

setup() {
  local missing=() package
  for package in "${PACKAGES[@]}"; do
    installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]})); then
    ((EUID == 0)) || fail 125 "missing packages: ${missing[*]} (apt-get install them, or run --setup as root)"
    echo "emulate: installing ${missing[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
  fi
  if [[ ! -s $kernel ]]; then
    # The metapackage depends on the package of the current version, which is unpacked but never installed.
    package=$(apt-cache depends --important linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    [[ $package ]] || fail 125 "no package linux-image-cloud-amd64: this needs Debian (and apt-get update)"
    echo "emulate: fetching $package" >&2
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg-deb --extract ./*.deb kernel) ||
      fail 125 "could not fetch $package (apt-get update may help)"
    mkdir -p "$cache"
    cp "$work"/kernel/boot/vmlinuz-* "$kernel.$$"
    mv "$kernel.$$" "$kernel"
  fi
  echo "emulate: ready, kernel in $kernel" >&2
}

# The argument as one word of a shell script.
quoted() {
  printf "'%s' " "${1//\'/\'\\\'\'}"
}

# The first process of the guest. The console is the first serial line; the program's output goes to the second and its
# errors to the third. Setting a line waits until it is drained. The restart is a triple fault (reboot=t), at which
# Bochs stops.
init_script() {
  local word
  cat <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys /dev /tmp
$b chmod 1777 /tmp
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
lines() { for line in 0 1 2; do $b stty -F /dev/ttyS$line raw -echo clocal 115200; done; }
lines
exec 3>/dev/ttyS1 4>/dev/ttyS2
cd /tmp
END
  # shellcheck disable=SC2016 # expanded in the guest
  printf '$b env -i PATH=/bin HOME=/tmp '
  for word in "$@"; do
    quoted "$word"
  done
  cat <<'END'
</dev/null >&3 2>&4 3>&- 4>&-
status=$?
lines
echo "emulated program: status $status."
lines
$b reboot -f
END
}

# Copies a file to the same path below the guest's root, through links.
give() {
  mkdir -p "$work/root$(dirname "$1")"
  cp -L "$1" "$work/root$1"
}

make_image() {
  local program=$1 library iso=$work/iso
  mkdir -p "$iso" "$work/root/bin"
  cp "$(command -v busybox)" "$work/root/bin/busybox"
  give "$program"
  chmod +x "$work/root$program"
  strip --strip-debug "$work/root$program" 2>/dev/null || true
  if readelf -lW "$program" 2>/dev/null | grep -q 'program interpreter'; then
    for library in $(ldd "$program" | grep -o '/[^ )]*'); do
      give "$library"
    done
  fi
  init_script ${environment[@]+"${environment[@]}"} "$@" >"$work/root/init"
  chmod +x "$work/root/init"
  (cd "$work/root" && find . -print0 | cpio -0 -o -H newc --quiet) >"$iso/initrd"

  # Where Bochs 2.7 is not quite a processor:
  # - It clears the bit that enables fast strings, so that Linux believes in FSRM without ERMS, and its memmove goes
  #   wrong.
  # - It reports sizes for PKRU and for the compacted form of XSAVE that Linux finds inconsistent, whereupon Linux
  #   gives up XSAVE and with it AVX. Without these features the plain form is used, which is right.
  # shellcheck disable=SC2054 # commas within a word
  local arguments=(
    rdinit=/init console=ttyS0,115200 quiet panic=-1 reboot=t clearcpuid=fsrm,pku,xsaves,xsavec
    nokaslr mitigations=off cryptomgr.notests lsm= tsc=reliable no_timer_check random.trust_cpu=on
  )
  cp "$kernel" "$iso/vmlinuz"
  cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$iso/"
  printf '%s\n' 'DEFAULT guest' 'LABEL guest' 'KERNEL /vmlinuz' 'INITRD /initrd' "APPEND ${arguments[*]}" \
    >"$iso/isolinux.cfg"
  xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$iso" >"$work/xorriso.log" 2>&1 || fail 125 "xorriso: $(<"$work/xorriso.log")"
}

cpu=ifma
limit=1800
environment=()
setup=
while (($#)); do
  case $1 in
    --setup) setup=yes ;;
    --cpu | --env | --timeout)
      (($# > 1)) || fail 2 "$1 needs a value"
      case $1 in
        --cpu) cpu=$2 ;;
        --env) environment+=("$2") ;;
        --timeout) limit=$2 ;;
      esac
      shift
      ;;
    --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*) fail 2 "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
  shift
done
case $cpu in
  ifma) model=corei7_icelake_u ;;
  avx512) model=corei7_skylake_x ;;
  avx2) model=broadwell_ult ;;
  sse42) model=corei5_lynnfield_750 ;;
  *) fail 2 "unknown processor $cpu: ifma, avx512, avx2 or sse42" ;;
esac
[[ $limit =~ ^[1-9][0-9]*$ ]] || fail 2 "--timeout needs a number of seconds"
for assignment in ${environment[@]+"${environment[@]}"}; do
  [[ $assignment =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || fail 2 "--env needs NAME=VALUE, not $assignment"
done

work=$(mktemp -d)
emulator=
# shellcheck disable=SC2317 # called by the trap
tidy() {
  if [[ $emulator ]]; then
    kill "$emulator" 2>/dev/null || true
    wait "$emulator" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [[ $setup ]]; then
  setup
  exit 0
fi
(($#)) || fail 2 "no program given (see --help)"
[[ -f $1 ]] || fail 2 "no such program: $1"
program=$(realpath -- "$1")
shift

if [[ -x $cache/bochs ]]; then
  bochs=$cache/bochs
  display=nogui
  command=()
else
  # Debian's has no display library that shows nothing, and waits for a command in its debugger.
  bochs=$(command -v bochs-bin || command -v bochs) || fail 125 "no Bochs: run $0 --setup"
  display=term
  command=(-rc continue)
fi
for needed in "$kernel" /usr/share/bochs/BIOS-bochs-latest /usr/lib/ISOLINUX/isolinux.bin; do
  [[ -s $needed ]] || fail 125 "no $needed: run $0 --setup"
done
for needed in xorriso cpio readelf busybox; do
  command -v "$needed" >/dev/null || fail 125 "no $needed: run $0 --setup"
done

make_image "$program" "$@"
cat >"$work/machine" <<END
display_library: $display
megs: $((512 + 3 * $(stat -c %s "$work/iso/initrd") / 1048576))
cpu: model=$model, count=1, ips=10000000, reset_on_triple_fault=0
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=console
com2: enabled=1, mode=file, dev=output
com3: enabled=1, mode=file, dev=errors
clock: sync=none
log: log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
END
echo c >"$work/continue"
touch "$work"/{console,output,errors,log}

# In the background, so that a signal to this script is acted on at once.
(cd "$work" && TERM=vt100 exec timeout -k 5 "$limit" "$bochs" -q -f machine ${command[@]+"${command[@]}"}) \
  </dev/null >"$work/screen" 2>&1 &
emulator=$!
ended=0
{ wait "$emulator" || ended=$?; } 2>/dev/null # Debian's may crash when it stops
emulator=

cat "$work/output"
cat "$work/errors" >&2
status=$(sed -n 's/^emulated program: status \([0-9]*\)\.$/\1/p' "$work/console" | tail -n 1)
[[ $status ]] && exit "$status"
((ended == 124 || ended == 137)) && fail 124 "not done after $limit seconds"
{
  tail -n 20 "$work/console"
  tail -n 5 "$work/log"
} | tr -cd '[:print:]\n' >&2
fail 125 "the emulated machine stopped without a result (Bochs ended with status $ended)"
