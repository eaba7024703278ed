// AscendCL: the library, devices and their memory.
#include "ascend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace occ::ort_plugin::ascend {

namespace {

constexpr int kInitialisedTwice = 100002, kNoContext = 107002, kHugeFirst = 0;
enum { kToDevice = 1, kToHost = 2, kOnDevice = 3 };  // aclrtMemcpyKind
constexpr size_t kAlignment = 128, kBehind = 32;  // what AscendCL asks of memory
constexpr size_t kSpare = 1 << 20;                // what a block may have more than is needed, to be used again

const char *const kMemory = "raise `npu_mem_limit`, run fewer sessions on the device, or use smaller gears";
const char *const kDriver = "check the driver with `npu-smi info`, and that this user may open /dev/davinci*";

bool is_one_of(int status, std::initializer_list<int> list) { return std::find(list.begin(), list.end(), status) != list.end(); }

// The places of the library, as occ's own runtime looks for it.
std::vector<std::string> places() {
    if (const char *given = getenv("OCC_ASCENDCL")) return {given};
    std::vector<std::string> roots, found;
    for (const char *name : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {
        if (const char *value = getenv(name)) roots.push_back(value);
    }
    for (const char *root : {"ascend-toolkit/latest", "nnrt/latest", "latest", "cann"}) roots.push_back(std::string("/usr/local/Ascend/") + root);
    for (const std::string &root : roots) {
        for (const char *folder : {"/lib64/", "/runtime/lib64/"}) {
            const std::string path = root + folder + "libascendcl.so";
            if (!access(path.c_str(), R_OK)) found.push_back(path);
        }
    }
    found.push_back("libascendcl.so");
    return found;
}

}  // namespace

Acl::Acl() {
    std::string why;
    for (const std::string &path : places()) {
        library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library_) break;
        if (why.empty()) why = dlerror();
    }
    if (!library_) {
        throw Failure("OCC0406: AscendCL, the runtime of CANN, does not load: " + why +
                      "; install CANN (toolkit or nnrt) and source its `set_env.sh`");
    }
#define OCC_ACL_RESOLVE(name, result, ...)                                                                                      \
    name = reinterpret_cast<result (*)(__VA_ARGS__)>(dlsym(library_, #name));                                                   \
    if (!name) throw Failure("OCC0406: AscendCL has no `" #name "`: this CANN is too old, or a part of it is not installed");
    OCC_ACL_CALLS(OCC_ACL_RESOLVE)
#undef OCC_ACL_RESOLVE
    const int status = aclInit(nullptr);
    if (status != kInitialisedTwice) check(status, "aclInit", "initialising AscendCL");
    initialised_here_ = status == 0;
}

Acl::~Acl() {
    if (initialised_here_) aclFinalize();  // the library stays: the driver has threads in it
}

void Acl::check(int status, const char *call, const std::string &doing) const {
    if (status) fail(status, call, doing);
}

void *Acl::made(void *handle, const char *call, const std::string &doing) const {
    if (!handle) fail(0, call, doing);
    return handle;
}

void Acl::fail(int status, const char *call, const std::string &doing) const {
    const char *told = aclGetRecentErrMsg();
    const std::string words = told ? told : "";
    std::string code = "OCC0512", help;
    if (is_one_of(status, {107001, 200002, 207004, 207006, 500004, 507033, 507899})) code = "OCC0407", help = kDriver;
    if (is_one_of(status, {200000, 207001, 207018, 245000, 300000})) code = "OCC0511", help = kMemory;
    if (status == 507008 || words.find("socVersion") != std::string::npos) {
        code = "OCC0510", help = "compile for this chip: `npu-smi info` shows its name, for `soc_version`";
    }
    std::string text = code + ": " + doing + " failed: `" + call + "` returned " + (status ? std::to_string(status) : "nothing");
    if (!words.empty()) text += ": " + words.substr(0, 600);
    if (!help.empty()) text += "; " + help;
    throw Failure(text);
}

Device::Current::Current(const Device &device) : device_(device) {
    const Acl &acl = *device.acl;
    const int status = acl.aclrtGetCurrentContext(&before_);
    if (status == kNoContext) before_ = nullptr;
    else acl.check(status, "aclrtGetCurrentContext", "asking for the context");
    if (before_ != device.context_) acl.check(acl.aclrtSetCurrentContext(device.context_), "aclrtSetCurrentContext", "switching to a device");
}

Device::Current::~Current() {
    if (before_ && before_ != device_.context_) device_.acl->aclrtSetCurrentContext(before_);
}

Device::Device(std::shared_ptr<Acl> library, int which) : acl(std::move(library)), number(which) {
    const std::string doing = "opening device " + std::to_string(number);
    void *before = nullptr;
    if (acl->aclrtGetCurrentContext(&before)) before = nullptr;
    acl->check(acl->aclrtSetDevice(number), "aclrtSetDevice", doing);
    int status = acl->aclrtCreateContext(&context_, number), mode = 1;
    const char *call = "aclrtCreateContext";
    if (!status) status = acl->aclrtGetRunMode(&mode), call = "aclrtGetRunMode";
    on_device_ = mode == 0;
    if (const char *name = acl->aclrtGetSocName()) soc = name;
    if (before) acl->aclrtSetCurrentContext(before);
    if (!status) return;
    if (context_) acl->aclrtDestroyContext(context_);
    acl->aclrtResetDevice(number);
    acl->check(status, call, doing);
}

Device::~Device() {
    acl->aclrtDestroyContext(context_);
    acl->aclrtResetDevice(number);
}

void *Device::malloc(size_t size) const {
    const Current here(*this);
    void *address = nullptr;
    acl->check(acl->aclrtMalloc(&address, size, kHugeFirst), "aclrtMalloc",
               "taking " + std::to_string(size) + " bytes on device " + std::to_string(number));
    return address;
}

void Device::free(void *address) const noexcept {
    try {
        const Current here(*this);
        acl->aclrtFree(address);
    } catch (const Failure &) {  // a release has no caller to report to
    }
}

void Device::move(void *to, const void *from, size_t size, int kind, const char *where) const {
    if (!size) return;
    const Current here(*this);
    acl->check(acl->aclrtMemcpy(to, size, from, size, on_device_ ? kOnDevice : kind), "aclrtMemcpy",
               "copying " + std::to_string(size) + " bytes " + where);
}

void Device::upload(void *to, const void *from, size_t size) const { move(to, from, size, kToDevice, "to the device"); }
void Device::download(void *to, const void *from, size_t size) const { move(to, from, size, kToHost, "to the host"); }
void Device::copy(void *to, const void *from, size_t size) const { move(to, from, size, kOnDevice, "on the device"); }

int Devices::count() const {
    uint32_t found = 0;
    acl_->check(acl_->aclrtGetDeviceCount(&found), "aclrtGetDeviceCount", "counting the devices");
    return int(found);
}

std::string Devices::soc() const {
    const char *name = acl_->aclrtGetSocName();
    return name ? name : "";
}

std::shared_ptr<Device> Devices::open(int number) {
    const std::lock_guard<std::mutex> hold(lock_);
    std::shared_ptr<Device> found = open_[number].lock();
    if (!found) open_[number] = found = std::make_shared<Device>(acl_, number);
    return found;
}

Arena::~Arena() {
    for (const auto &[address, size] : used_) idle_.emplace(size, address);
    trim();
}

// Called with the lock held.
void Arena::trim() {
    for (const auto &[size, address] : idle_) {
        device->free(address);
        reserved_ -= size;
    }
    idle_.clear();
}

// Called with the lock held.
void *Arena::grow(size_t need) {
    size_t size = need;
    if (doubles_) {
        size = kAlignment;
        while (size < need) size *= 2;
    }
    if (limit_ && reserved_ + size > limit_) size = need;
    if (limit_ && reserved_ + size > limit_) trim();
    if (limit_ && reserved_ + size > limit_) {
        throw Failure("OCC0511: " + std::to_string(need) + " bytes of device memory do not fit: `npu_mem_limit` is " + std::to_string(limit_) +
                      ", " + std::to_string(reserved_) + " are in use; " + kMemory);
    }
    void *address = nullptr;
    try {
        address = device->malloc(size);
    } catch (const Failure &) {
        trim();
        address = device->malloc(size = need);
    }
    reserved_ += size;
    used_[address] = size;
    return address;
}

void *Arena::take(size_t size) {
    const size_t need = (std::max<size_t>(size, 1) + kBehind + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard<std::mutex> hold(lock_);
    const auto found = idle_.lower_bound(need);
    if (found == idle_.end() || found->first > std::max(2 * need, kSpare)) return grow(need);
    void *address = found->second;
    used_[address] = found->first;
    idle_.erase(found);
    return address;
}

void Arena::give(void *address) {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto found = used_.find(address);
    if (found == used_.end()) return;
    idle_.emplace(found->second, address);
    used_.erase(found);
}

}  // namespace occ::ort_plugin::ascend
